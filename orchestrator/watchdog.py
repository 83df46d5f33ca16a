"""The watchdog of one process: a thread that names what makes no progress, even while the event loop itself stands still.

| finds | says | does |
|---|---|---|
| a loop that works without progress for `no_progress_s`, or has ended | `watchdog.stuck`: loop, item, dependency | begins it anew, if safe |
| the event loop blocked for `lag_s` | `watchdog.event_loop_blocked`, with its stack | nothing |
| the event loop blocked for `no_progress_s` | `watchdog.process_hangs` | ends the process: a supervisor starts another |

An alarm is said when it begins, again after every further `no_progress_s`, and once when it is over. All of it is a metric too: in `registry`, and
as text in `metrics_file` for whatever collects such files.
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

from orchestrator.log import get, lines_lost
from orchestrator.metrics import SHORT, only
from orchestrator.progress import Board, Loop, boarding

log = get(__name__)

HANGS = 70  # exit status of a process whose event loop does not come back
LOOKS = 20  # per no_progress_s
LONGEST_LOOK_S = 1.0
EVENT_LOOP = -1  # its alarm, among those of loops by their number


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """Seconds. `metrics_file`: where the metrics are written after every look; None: nowhere."""

    no_progress_s: float = 45.0
    lag_s: float = 5.0
    metrics_file: Path | None = None

    @property
    def look_s(self) -> float:
        return min(LONGEST_LOOK_S, self.no_progress_s / LOOKS, self.lag_s / 4)

    @property
    def hangs_s(self) -> float:
        return max(self.no_progress_s, self.lag_s)


@dataclass(slots=True)
class _Alarm:
    """One that rings: since when, and when it was last said."""

    name: str
    said: float
    fields: dict[str, object] = field(default_factory=dict)


class Watchdog:
    """Looks after the event loop that it is made in. `run` is its thread; `look` one look, for tests and for the thread."""

    def __init__(
        self, board: Board, settings: WatchdogSettings, end: Callable[[int], None] = os._exit
    ) -> None:
        self.board = board
        self.settings = settings
        self.registry = CollectorRegistry()
        self._end = end
        self._event_loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._alarms: dict[int, _Alarm] = {}
        self._stop = threading.Event()
        self._looked = time.monotonic()
        self._answered = True  # the last thing asked of the event loop
        self._asked = self._looked
        self._blocked_s = 0.0
        process = ["process"]
        self._age = Gauge(
            "penstock_loop_age_seconds", "seconds since a loop's last progress, by what it waits for",
            [*process, "loop", "waits_for"], registry=self.registry,
        )  # fmt: skip
        self._stuck = Gauge(
            "penstock_loop_stuck", "1: a loop makes no progress, or has ended", [*process, "loop", "waits_for"],
            registry=self.registry,
        )  # fmt: skip
        self._stalls = Counter(
            "penstock_loop_stalls", "alarms about loops", [*process, "loop", "waits_for"], registry=self.registry
        )  # fmt: skip
        self._restarts = Counter(
            "penstock_loop_restarts", "stuck loops begun anew", [*process, "loop"], registry=self.registry
        )
        self._lag = Gauge(
            "penstock_event_loop_blocked_seconds", "for how long the event loop has not run", process,
            registry=self.registry,
        ).labels(board.process)  # fmt: skip
        self._lags = Counter(
            "penstock_event_loop_blocked", "times that the event loop did not run for too long", process,
            registry=self.registry,
        ).labels(board.process)  # fmt: skip
        self._answers = Histogram(
            "penstock_event_loop_lag_seconds", "time until the event loop ran what the watchdog asked of it", process,
            buckets=SHORT, registry=self.registry,
        ).labels(board.process)  # fmt: skip
        self._lines = Counter(
            "penstock_log_lines_lost", "log lines that could not be written", process, registry=self.registry
        ).labels(board.process)
        self._lost = 0  # of them in the counter
        self._damaged = Counter(
            "penstock_journal_damaged_bytes", "bytes of journals that were found damaged at the start", process,
            registry=self.registry,
        ).labels(board.process)  # fmt: skip

    def run(self) -> None:
        """Look until stopped."""
        while not self._stop.wait(self.settings.look_s):
            self.look()

    def stop(self) -> None:
        self._stop.set()

    def damaged(self, size: int) -> None:
        """So many bytes of a journal belong to no frame."""
        self._damaged.inc(size)

    def look(self) -> None:
        """One look at everything."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        stood_still = passed - self.settings.look_s - LONGEST_LOOK_S
        if stood_still > 0:  # the whole process was stopped, or the machine: its loops did not hang
            self.board.skip(stood_still)
            passed -= stood_still
        self._look_at_event_loop(passed)
        self._look_at_loops(now)
        lost, before = lines_lost(), self._lost
        self._lines.inc(max(0, lost - before))
        self._lost = lost
        if self.settings.metrics_file is not None:
            try:
                write_to_textfile(str(self.settings.metrics_file), self.registry)
            except OSError as error:
                log.debug("watchdog.metrics_not_written", error=str(error))

    # --- the event loop ---------------------------------------------------------------------------------------

    def _look_at_event_loop(self, passed: float) -> None:
        self._blocked_s = 0.0 if self._answered else self._blocked_s + passed
        self._lag.set(self._blocked_s)
        if self._answered:
            self._answered = False
            self._asked = time.monotonic()
            try:
                self._event_loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed: the process ends
                self._stop.set()
        said: dict[str, object] | None = None
        if self._blocked_s >= self.settings.lag_s:
            said = {"seconds": round(self._blocked_s, 1), "stack": self._stack()}
            if EVENT_LOOP not in self._alarms:
                self._lags.inc()
        self._ring(EVENT_LOOP, "watchdog.event_loop_blocked", said)
        if self._blocked_s >= self.settings.hangs_s:
            log.error(
                "watchdog.process_hangs",
                process=self.board.process,
                seconds=round(self._blocked_s, 1),
                consequence="the process ends, so that another one is started",
                stack=self._stack(),
            )
            self._end(HANGS)

    def _answer(self) -> None:
        self._answers.observe(time.monotonic() - self._asked)
        self._answered = True

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    # --- its loops --------------------------------------------------------------------------------------------

    def _look_at_loops(self, now: float) -> None:
        ages: dict[tuple[str, ...], float] = {}  # of loops with one name, the worst
        stuck: dict[tuple[str, ...], float] = {}
        loops = self.board.loops()
        for number, loop in loops.items():
            labels = (self.board.process, loop.name, loop.waits_for)
            seconds = loop.stuck_for(now, self.settings.no_progress_s)
            ages[labels] = max(ages.get(labels, 0.0), now - loop.since)
            stuck[labels] = max(stuck.get(labels, 0.0), 1.0 if seconds else 0.0)
            if seconds and number not in self._alarms:
                self._stalls.labels(*labels).inc()
            if self._ring(number, "watchdog.stuck", said_of(loop, seconds) if seconds else None):
                self._begin_anew(loop)
        only(self._age, ages)
        only(self._stuck, stuck)
        for gone in self._alarms.keys() - loops.keys() - {EVENT_LOOP}:
            self._over(gone)

    def _begin_anew(self, loop: Loop) -> None:
        if loop.restart is not None and not loop.ended:
            self._restarts.labels(self.board.process, loop.name).inc()
            log.warning("watchdog.restart", process=self.board.process, loop=loop.name)
            self._event_loop.call_soon_threadsafe(loop.restart)

    # --- alarms -----------------------------------------------------------------------------------------------

    def _ring(self, key: int, event: str, said: dict[str, object] | None) -> bool:
        """Whether the alarm was said just now; None: it does not ring."""
        if said is None:
            if key in self._alarms:
                self._over(key)
            return False
        alarm, now = self._alarms.get(key), time.monotonic()
        if alarm is not None and now - alarm.said < self.settings.no_progress_s:
            return False
        self._alarms[key] = _Alarm(event, now, {k: v for k, v in said.items() if k in ("loop", "item")})
        log.error(event, process=self.board.process, **said)
        return True

    def _over(self, key: int) -> None:
        alarm = self._alarms.pop(key)
        log.info(f"{alarm.name}.over", process=self.board.process, **alarm.fields)


def said_of(loop: Loop, seconds: float) -> dict[str, object]:
    """A stuck loop as the fields of one line."""
    said: dict[str, object] = {
        "loop": loop.name,
        "item": loop.item or "none",
        "waits_for": loop.waits_for or "itself",
        "seconds": round(seconds, 1),
    }
    return {**said, "ended": loop.ended} if loop.ended else said


_dog: ContextVar[Watchdog | None] = ContextVar("watchdog", default=None)


def on_watch() -> Watchdog | None:
    """The watchdog of this process."""
    return _dog.get()


@contextmanager
def watching(process: str, settings: WatchdogSettings) -> Iterator[Watchdog]:
    """A board and a watchdog for the event loop that runs this, and for every loop that is started inside."""
    with boarding(process) as board:
        dog = Watchdog(board, settings)
        token = _dog.set(dog)
        thread = threading.Thread(target=copy_context().run, args=(dog.run,), name="watchdog", daemon=True)
        thread.start()
        try:
            yield dog
        finally:
            _dog.reset(token)
            dog.stop()
            thread.join(5 * settings.look_s)
