"""The stall detector: names the cause while the run is blocked.

| produces | waits for | unblocked by |
|---|---|---|
| counts of refusals, as metrics | time | time |
| alarms in log and metrics: stage, item, process, loop, dependency | time | time |
| repeated assignments, if their workers are alive and idle | time | time |
| a warning when the window is too small for groups of very different durations | groups that became ready | runners |
| nothing while Postgres is away: the watchdog of every process names that | Postgres | its return |

An alarm rings when a stage has the same cause on two looks, so that an item in the middle of a handover rings none. It rings at most
`no_progress_s`, a heartbeat and two looks after the progress ended: 1.25 × `no_progress_s`, plus the duration of the looks. `penstock status`
runs the same checks, once.
"""

import math
import time
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.pool import transitions
from orchestrator.pool.backlog import BacklogStage, group_seconds, stages
from orchestrator.pool.heartbeats import present
from orchestrator.pool.stall_causes import ASSIGNED, StallCause, eased, stall_causes
from orchestrator.pool.transact import transact
from orchestrator.queries.run_gauges import run_gauges
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.metrics import RunMetrics
from orchestrator.roles.rebuild import remind
from orchestrator.runtime.liveness import pause
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured, only
from orchestrator.runtime.watchdog import on_watch
from orchestrator.scheduling.admission import QueueSettings, idle_warning

log = get(__name__)

CHECKS_PER_NO_PROGRESS = 12
ADMISSION_HALTED = "admission_halted"  # an alert waits for it
WINDOW_EVERY = 12  # looks


@dataclass(slots=True)
class _Alarm:
    """A stall cause that was seen; `reported_at` is None until it rings."""

    stall_cause: StallCause
    reported_at: float | None = None


class StallDetector:
    """The stall detector of one run. Its metrics go to the registry of this process's watchdog."""

    def __init__(self, context: OrchestratorContext) -> None:
        watchdog = on_watch()
        self._context = context
        self._settings = QueueSettings.of(context.config)
        self._no_progress_s = (
            watchdog.settings.no_progress_s if watchdog else context.config.watchdog.no_progress_s
        )
        self._alarms: dict[str, _Alarm] = {}
        self._looks = 0
        self._reminded = -math.inf
        self._warned: str | None = None
        registry = watchdog.registry if watchdog else CollectorRegistry()
        self._open = Gauge("penstock_stage_open", "unfinished items of a stage", ["stage"], registry=registry)
        self._oldest = Gauge(
            "penstock_stage_oldest_seconds",
            "age of a stage's oldest unfinished item",
            ["stage"],
            registry=registry,
        )
        self._stuck = Gauge(
            "penstock_stage_stuck",
            "1: a stage makes no progress, and who holds it up",
            ["stage", "process", "loop", "waits_for"],
            registry=registry,
        )
        self.counted = Gauge(
            "penstock_counted",
            "refusals and no-ops of the run: its rows of `counters`",
            ["name"],
            registry=registry,
        )
        self._stalls = Counter("penstock_stage_stalls", "alarms about stages", ["stage"], registry=registry)

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await pause(self._no_progress_s / CHECKS_PER_NO_PROGRESS)

    async def check(self) -> dict[str, StallCause]:
        """Check once; returns the causes whose alarm rings, by stage."""
        context, limit = self._context, self._no_progress_s

        async def read(
            connection: AsyncConnection,
        ) -> tuple[list[BacklogStage], dict[str, StallCause], dict[str, int]]:
            processes = await present(connection, context.run_id)
            gauges = await run_gauges(connection, context.run_id, context.config)
            measured(RunMetrics).show(gauges, processes)
            found = eased(await stages(connection, context.run_id, context.config, self._settings), processes)
            counted = await transitions.counts(connection, context.run_id)
            return found, stall_causes(found, processes, limit), counted

        found, cause_of_stage, counted = await transact(context.engine, read, at="orchestrator.read")
        only(self.counted, {(name,): amount for name, amount in {ADMISSION_HALTED: 0, **counted}.items()})
        for stage in found:
            self._open.labels(stage.name).set(stage.open)
            self._oldest.labels(stage.name).set(stage.oldest_s)
        for name in self._alarms.keys() - cause_of_stage.keys():
            if self._alarms.pop(name).reported_at is not None:
                log.info("stage.recovered", stage=name)
        ringing = {
            name: stall_cause
            for name, stall_cause in cause_of_stage.items()
            if self._rings(name, stall_cause)
        }
        only(
            self._stuck,
            {(name, each.process, each.loop, each.waits_for): 1 for name, each in ringing.items()},
        )
        if any(
            stall_cause.loop and stall_cause.stage.late_s
            for stall_cause in ringing.values()
            if stall_cause.stage.name in ASSIGNED
        ):
            await self._remind()
        if self._looks % WINDOW_EVERY == 0:
            await self._look_at_window()
        self._looks += 1
        return ringing

    def _rings(self, name: str, stall_cause: StallCause) -> bool:
        """Whether the alarm rings now; it is logged when it starts, and again after every further `no_progress_s`."""
        alarm = self._alarms.get(name)
        if (
            alarm is None
            or alarm.stall_cause.process != stall_cause.process
            or alarm.stall_cause.loop != stall_cause.loop
        ):
            self._alarms[name] = _Alarm(stall_cause)
            return False
        now = time.monotonic()
        if alarm.reported_at is None or now - alarm.reported_at >= self._no_progress_s:
            if alarm.reported_at is None:
                self._stalls.labels(name).inc()
            alarm.reported_at = now
            log.error(
                "stage.stuck",
                stage=name,
                open=stall_cause.stage.open,
                item=stall_cause.item,
                oldest_s=round(stall_cause.stage.oldest_s, 1),
                at_process=stall_cause.process,
                loop=stall_cause.loop,
                waits_for=stall_cause.waits_for,
                because=stall_cause.sentence,
            )
        return True

    async def _remind(self) -> None:
        """Send again the assignments that no worker took. A surplus copy has a stale epoch: a no-op."""
        context, now = self._context, time.monotonic()
        if now - self._reminded < self._no_progress_s:
            return
        self._reminded = now
        resent = await transact(
            context.engine,
            lambda connection: remind(connection, context, after_s=self._no_progress_s),
            at="reminder.commit",
        )
        if resent:
            log.warning("assignments.resent", messages=resent)
            context.signals.outbox.set()

    async def _look_at_window(self) -> None:
        measured = await transact(
            self._context.engine,
            lambda connection: group_seconds(connection, self._context.run_id),
            at="orchestrator.read",
        )
        warning = idle_warning(self._settings, *measured) if measured else None
        if warning is not None and self._warned is None:
            log.warning("window.idles_the_trainer", warning=warning)
        self._warned = warning
