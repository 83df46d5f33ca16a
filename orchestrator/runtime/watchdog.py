"""The watchdog of one process: a thread that reports loops without progress, even while the event loop itself is blocked.

| finds | logs | does |
|---|---|---|
| a loop that works without progress for `no_progress_s`, or has ended | `watchdog.stuck`: loop, item, dependency | restarts it, if safe |
| the event loop blocked for `lag_s` | `watchdog.event_loop_blocked`, with its stack | nothing |
| the event loop blocked for `no_progress_s` | `watchdog.process_hangs` | ends the process: a supervisor starts another |

An alarm is logged when it starts, again after every further `no_progress_s`, and once when it is over. All alarms are metrics too: in `registry`,
and as text in `metrics_file` for a collector of such files.
"""

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, write_to_textfile

from orchestrator.runtime.liveness import Loop, LoopRegistry, loop_registry
from orchestrator.runtime.log import get, lines_lost
from orchestrator.runtime.metrics import SHORT, only

log = get(__name__)

HANGS = 70  # exit status of a process with a hanging event loop
CHECKS_PER_NO_PROGRESS = 20
MAX_POLL_INTERVAL_S = 1.0
EVENT_LOOP = -1  # the key of its alarm; alarms of loops have the loop's number


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """Seconds. `metrics_file`: the file to which the metrics are written after every check; None: nowhere."""

    no_progress_s: float = 45.0
    lag_s: float = 5.0
    metrics_file: Path | None = None

    @property
    def poll_interval_s(self) -> float:
        return min(MAX_POLL_INTERVAL_S, self.no_progress_s / CHECKS_PER_NO_PROGRESS, self.lag_s / 4)

    @property
    def hangs_s(self) -> float:
        return max(self.no_progress_s, self.lag_s)


@dataclass(slots=True)
class _Alarm:
    """An active alarm, and when it was last logged."""

    name: str
    reported_at: float
    fields: dict[str, object] = field(default_factory=dict)


class _Metrics:
    """The counters of a watchdog, in a registry of its own."""

    def __init__(self, process: str) -> None:
        self.registry = CollectorRegistry()
        label = ["process"]
        self.age = Gauge(
            "penstock_loop_age_seconds",
            "seconds since a loop's last progress, by what it waits for",
            [*label, "loop", "waits_for"],
            registry=self.registry,
        )
        self.stuck = Gauge(
            "penstock_loop_stuck",
            "1: a loop makes no progress, or has ended",
            [*label, "loop", "waits_for"],
            registry=self.registry,
        )
        self.stalls = Counter(
            "penstock_loop_stalls",
            "alarms about loops",
            [*label, "loop", "waits_for"],
            registry=self.registry,
        )
        self.restarts = Counter(
            "penstock_loop_restarts",
            "stuck loops that were restarted",
            [*label, "loop"],
            registry=self.registry,
        )
        self.lag = Gauge(
            "penstock_event_loop_blocked_seconds",
            "for how long the event loop has not run",
            label,
            registry=self.registry,
        ).labels(process)
        self.lags = Counter(
            "penstock_event_loop_blocked",
            "times that the event loop did not run for too long",
            label,
            registry=self.registry,
        ).labels(process)
        self.answers = Histogram(
            "penstock_event_loop_lag_seconds",
            "time until the event loop ran the watchdog's callback",
            label,
            buckets=SHORT,
            registry=self.registry,
        ).labels(process)
        self.lines = Counter(
            "penstock_log_lines_lost", "log lines that could not be written", label, registry=self.registry
        ).labels(process)
        self.damaged = Counter(
            "penstock_journal_damaged_bytes",
            "bytes of journals that were found damaged at the start",
            label,
            registry=self.registry,
        ).labels(process)


class Watchdog:
    """Monitors the event loop in which it is created. `run` is its thread; `check` is one round, for tests and for the thread."""

    def __init__(
        self, loops: LoopRegistry, settings: WatchdogSettings, end: Callable[[int], None] = os._exit
    ) -> None:
        self.loops = loops
        self.settings = settings
        self._end = end
        self._event_loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._alarms: dict[int, _Alarm] = {}
        self._stop = threading.Event()
        self._checked_at = time.monotonic()
        self._answered = True  # whether the event loop ran the last callback
        self._requested_at = self._checked_at
        self._blocked_s = 0.0
        self._metrics = _Metrics(loops.process)
        self.registry = self._metrics.registry
        self._lost = 0  # log lines in the counter

    def run(self) -> None:
        """Check until stopped."""
        while not self._stop.wait(self.settings.poll_interval_s):
            self.check()

    def stop(self) -> None:
        self._stop.set()

    def damaged(self, size: int) -> None:
        """Count damaged journal bytes: `size` bytes that belong to no frame."""
        self._metrics.damaged.inc(size)

    def check(self) -> None:
        """Check everything once."""
        now = time.monotonic()
        elapsed_s, self._checked_at = now - self._checked_at, now
        stopped_s = elapsed_s - self.settings.poll_interval_s - MAX_POLL_INTERVAL_S
        if stopped_s > 0:  # the whole process or machine was stopped: its loops did not hang
            self.loops.skip(stopped_s)
            elapsed_s -= stopped_s
        self._check_event_loop(elapsed_s)
        self._check_loops(now)
        lost, lost_before = lines_lost(), self._lost
        self._metrics.lines.inc(max(0, lost - lost_before))
        self._lost = lost
        if self.settings.metrics_file is not None:
            try:
                write_to_textfile(str(self.settings.metrics_file), self.registry)
            except OSError as error:
                log.debug("watchdog.metrics_not_written", error=str(error))

    # --- the event loop ---------------------------------------------------------------------------------------

    def _check_event_loop(self, passed: float) -> None:
        self._blocked_s = 0.0 if self._answered else self._blocked_s + passed
        self._metrics.lag.set(self._blocked_s)
        if self._answered:
            self._answered = False
            self._requested_at = time.monotonic()
            try:
                self._event_loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed: the process ends
                self._stop.set()
        fields: dict[str, object] | None = None
        if self._blocked_s >= self.settings.lag_s:
            fields = {"seconds": round(self._blocked_s, 1), "stack": self._stack()}
            if EVENT_LOOP not in self._alarms:
                self._metrics.lags.inc()
        self._ring(EVENT_LOOP, "watchdog.event_loop_blocked", fields)
        if self._blocked_s >= self.settings.hangs_s:
            log.error(
                "watchdog.process_hangs",
                process=self.loops.process,
                seconds=round(self._blocked_s, 1),
                consequence="the process ends, so that another one is started",
                stack=self._stack(),
            )
            self._end(HANGS)

    def _answer(self) -> None:
        self._metrics.answers.observe(time.monotonic() - self._requested_at)
        self._answered = True

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    # --- its loops --------------------------------------------------------------------------------------------

    def _check_loops(self, now: float) -> None:
        ages: dict[tuple[str, ...], float] = {}  # the worst of the loops with one name
        stuck: dict[tuple[str, ...], float] = {}
        loops = self.loops.loops()
        for number, loop in loops.items():
            labels = (self.loops.process, loop.name, loop.waits_for)
            seconds = loop.stuck_for(now, self.settings.no_progress_s)
            ages[labels] = max(ages.get(labels, 0.0), now - loop.since)
            stuck[labels] = max(stuck.get(labels, 0.0), 1.0 if seconds else 0.0)
            if seconds and number not in self._alarms:
                self._metrics.stalls.labels(*labels).inc()
            if self._ring(number, "watchdog.stuck", log_fields(loop, seconds) if seconds else None):
                self._restart(loop)
        only(self._metrics.age, ages)
        only(self._metrics.stuck, stuck)
        for ended in self._alarms.keys() - loops.keys() - {EVENT_LOOP}:
            self._over(ended)

    def _restart(self, loop: Loop) -> None:
        if loop.restart is not None and not loop.ended:
            self._metrics.restarts.labels(self.loops.process, loop.name).inc()
            log.warning("watchdog.restart", process=self.loops.process, loop=loop.name)
            self._event_loop.call_soon_threadsafe(loop.restart)

    # --- alarms -----------------------------------------------------------------------------------------------

    def _ring(self, key: int, event: str, fields: dict[str, object] | None) -> bool:
        """Whether the alarm was logged just now. `fields` None: the alarm is not active."""
        if fields is None:
            if key in self._alarms:
                self._over(key)
            return False
        alarm, now = self._alarms.get(key), time.monotonic()
        if alarm is not None and now - alarm.reported_at < self.settings.no_progress_s:
            return False
        self._alarms[key] = _Alarm(event, now, {k: v for k, v in fields.items() if k in ("loop", "item")})
        log.error(event, process=self.loops.process, **fields)
        return True

    def _over(self, key: int) -> None:
        alarm = self._alarms.pop(key)
        log.info(f"{alarm.name}.over", process=self.loops.process, **alarm.fields)


def log_fields(loop: Loop, seconds: float) -> dict[str, object]:
    """The fields of a log line about a stuck loop."""
    fields: dict[str, object] = {
        "loop": loop.name,
        "item": loop.item or "none",
        "waits_for": loop.waits_for or "itself",
        "seconds": round(seconds, 1),
    }
    return {**fields, "ended": loop.ended} if loop.ended else fields


_dog: ContextVar[Watchdog | None] = ContextVar("watchdog", default=None)


def on_watch() -> Watchdog | None:
    """The watchdog of this process."""
    return _dog.get()


@contextmanager
def watching(process: str, settings: WatchdogSettings) -> Iterator[Watchdog]:
    """A registry of loops and a watchdog for the current event loop, and for every loop that is started inside."""
    with loop_registry(process) as loops:
        watchdog = Watchdog(loops, settings)
        token = _dog.set(watchdog)
        thread = threading.Thread(
            target=copy_context().run, args=(watchdog.run,), name="watchdog", daemon=True
        )
        thread.start()
        try:
            yield watchdog
        finally:
            _dog.reset(token)
            watchdog.stop()
            thread.join(5 * settings.poll_interval_s)
