"""The overseer: names what holds the run up, while it does.

| produces | waits for | unblocked by |
|---|---|---|
| what was refused, as metrics | time | time |
| alarms in log and metrics: stage, item, process, loop, dependency | time | time |
| assignments once more, where those who should have them live and rest | time | time |
| a warning when the window is too small for groups that take so differently long | groups that became ready | runners |
| nothing while Postgres is away: the watchdog of every process names that | Postgres | its return |

An alarm rings when a stage has the same culprit on two looks, so that what is just being handed on rings none: at most `no_progress_s`, a
heartbeat and two looks after the progress ended, which is 1.25 × `no_progress_s` and what the looks themselves take. `penstock status` asks
the same questions, once.
"""

import math
import time
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.flow.context import Flow
from orchestrator.flow.dispatcher import queue_settings
from orchestrator.flow.measures import RunMetrics, see
from orchestrator.flow.rebuild import remind
from orchestrator.log import get
from orchestrator.metrics import measured, only
from orchestrator.pool import history
from orchestrator.pool.culprits import Culprit, culprits, eased
from orchestrator.pool.presence import present
from orchestrator.pool.stages import Stage, group_seconds, stages
from orchestrator.pool.transact import transact
from orchestrator.progress import pause
from orchestrator.scheduling.admission import idle_warning
from orchestrator.watchdog import on_watch

log = get(__name__)

LOOKS = 12  # per no_progress_s
ADMISSION_HALTED = "admission_halted"  # an alert waits for it
WINDOW_EVERY = 12  # looks
ASSIGNED = ("lease", "verify")  # stages whose items are assigned by messages


@dataclass(slots=True)
class _Alarm:
    """A culprit that was seen; `said` is None until it rings."""

    culprit: Culprit
    said: float | None = None


class Overseer:
    """Of one run. Its metrics go to the registry of this process's watchdog."""

    def __init__(self, flow: Flow) -> None:
        dog = on_watch()
        self._flow = flow
        self._settings = queue_settings(flow.config)
        self._no_progress_s = dog.settings.no_progress_s if dog else flow.config.watchdog.no_progress_s
        self._alarms: dict[str, _Alarm] = {}
        self._looks = 0
        self._reminded = -math.inf
        self._warned: str | None = None
        registry = dog.registry if dog else CollectorRegistry()
        self._open = Gauge("penstock_stage_open", "unfinished items of a stage", ["stage"], registry=registry)
        self._oldest = Gauge(
            "penstock_stage_oldest_seconds", "age of a stage's oldest unfinished item", ["stage"], registry=registry
        )  # fmt: skip
        self._stuck = Gauge(
            "penstock_stage_stuck", "1: a stage makes no progress, and who holds it up",
            ["stage", "process", "loop", "waits_for"], registry=registry,
        )  # fmt: skip
        self.counted = Gauge(
            "penstock_counted", "refusals and no-ops of the run: its rows of `counters`", ["name"], registry=registry
        )  # fmt: skip
        self._stalls = Counter("penstock_stage_stalls", "alarms about stages", ["stage"], registry=registry)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await pause(self._no_progress_s / LOOKS)

    async def look(self) -> dict[str, Culprit]:
        """One look; returns the culprits whose alarm rings, by stage."""
        flow, limit = self._flow, self._no_progress_s

        async def read(connection: AsyncConnection) -> tuple[list[Stage], dict[str, Culprit], dict[str, int]]:
            processes = await present(connection, flow.run_id)
            seen = await see(connection, flow.run_id, flow.config)
            measured(RunMetrics).show(seen, processes)
            found = eased(await stages(connection, flow.run_id, flow.config, self._settings), processes)
            counted = await history.counts(connection, flow.run_id)
            return found, culprits(found, processes, limit), counted

        found, named, counted = await transact(flow.engine, read, at="orchestrator.read")
        for name, amount in {ADMISSION_HALTED: 0, **counted}.items():
            self.counted.labels(name).set(amount)
        for stage in found:
            self._open.labels(stage.name).set(stage.open)
            self._oldest.labels(stage.name).set(stage.oldest_s)
        for name in self._alarms.keys() - named.keys():
            if self._alarms.pop(name).said is not None:
                log.info("stage.moves", stage=name)
        ringing = {name: culprit for name, culprit in named.items() if self._rings(name, culprit)}
        only(self._stuck, {(name, one.process, one.loop, one.waits_for): 1 for name, one in ringing.items()})
        if any(
            culprit.loop and culprit.stage.late_s
            for culprit in ringing.values()
            if culprit.stage.name in ASSIGNED
        ):
            await self._remind()
        if self._looks % WINDOW_EVERY == 0:
            await self._look_at_window()
        self._looks += 1
        return ringing

    def _rings(self, name: str, culprit: Culprit) -> bool:
        """Whether the alarm rings now; it is said when it begins, and again after every further `no_progress_s`."""
        alarm = self._alarms.get(name)
        if alarm is None or alarm.culprit.process != culprit.process or alarm.culprit.loop != culprit.loop:
            self._alarms[name] = _Alarm(culprit)
            return False
        now = time.monotonic()
        if alarm.said is None or now - alarm.said >= self._no_progress_s:
            if alarm.said is None:
                self._stalls.labels(name).inc()
            alarm.said = now
            log.error(
                "stage.stuck",
                stage=name,
                open=culprit.stage.open,
                item=culprit.item,
                oldest_s=round(culprit.stage.oldest_s, 1),
                at_process=culprit.process,
                loop=culprit.loop,
                waits_for=culprit.waits_for,
                because=culprit.sentence,
            )
        return True

    async def _remind(self) -> None:
        """Whatever became of an assignment that nobody took: one too many is one of a stale epoch, and a no-op."""
        flow, now = self._flow, time.monotonic()
        if now - self._reminded < self._no_progress_s:
            return
        self._reminded = now
        owed = await transact(
            flow.engine,
            lambda connection: remind(connection, flow, after_s=self._no_progress_s),
            at="reminder.commit",
        )
        if owed:
            log.warning("assignments.owed_again", messages=owed)
            flow.signals.outbox.set()

    async def _look_at_window(self) -> None:
        measured = await transact(
            self._flow.engine,
            lambda connection: group_seconds(connection, self._flow.run_id),
            at="orchestrator.read",
        )
        warning = idle_warning(self._settings, *measured) if measured else None
        if warning is not None and self._warned is None:
            log.warning("window.idles_the_trainer", warning=warning)
        self._warned = warning
