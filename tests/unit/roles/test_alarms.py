"""With the default settings, every alarm about missing progress rings within a minute of the last progress."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.contracts.states import BacklogStageName
from orchestrator.pool.backlog import BacklogStage
from orchestrator.pool.heartbeats import BEATS, LoopReport, ProcessReport
from orchestrator.pool.stall_causes import stall_causes
from orchestrator.roles import stall_detector
from orchestrator.roles.stall_detector import StallDetector
from orchestrator.runtime.liveness import Loop
from orchestrator.runtime.watchdog import WatchdogSettings
from orchestrator.settings.config import Config
from trainer.__main__ import options

PROMISED_S = 60.0
ITSELF_S = 1.0  # a heartbeat, a look: the data pool may take so long for each
PHASES = 10  # of the heartbeat and of the look, relative to the moment at which the progress ends
LIMIT_S = Config().watchdog.no_progress_s

Seen = Callable[[float, float], tuple[BacklogStage, list[ProcessReport]]]
"""(now, time of the last heartbeat) → the findings of a look."""


def runner(silent_s: float, *loops: LoopReport) -> ProcessReport:
    return ProcessReport(host="here", process="runner", pid=7, silent_s=silent_s, stopped=False, loops=loops)


def report(name: str, *, stuck_s: float = 0.0) -> LoopReport:
    return LoopReport(
        name=name,
        item="rollout 5",
        waits_for="",
        resting=not stuck_s,
        age_s=0.0,
        stuck_s=stuck_s,
        ended="",
        restarts=0,
    )


def hangs(now: float, beat: float) -> tuple[BacklogStage, list[ProcessReport]]:
    """A loop makes no progress from 0 on. Nothing is late: an attempt may take longer."""
    loop = Loop(name="attempt", since=0.0)
    stuck_s = loop.stuck_for(beat, LIMIT_S)
    return BacklogStage(name=BacklogStageName.RUN, open=1, item="rollout 5"), [
        runner(now - beat, report("attempt", stuck_s=stuck_s))
    ]


def is_lost(now: float, beat: float) -> tuple[BacklogStage, list[ProcessReport]]:
    """A rollout that is due since 0 was never announced."""
    return BacklogStage(name=BacklogStageName.LEASE, open=1, item="rollout 5", oldest_s=now, late_s=now), [
        runner(now - beat, report("rollouts"))
    ]


def is_nobodys(now: float, beat: float) -> tuple[BacklogStage, list[ProcessReport]]:
    """No runner has ever been there."""
    return BacklogStage(name=BacklogStageName.LEASE, open=1, item="rollout 5", oldest_s=now, late_s=now), []


def is_stopped(now: float, beat: float) -> tuple[BacklogStage, list[ProcessReport]]:
    """The only runner hangs from 0 on, just after a heartbeat."""
    return BacklogStage(name=BacklogStageName.RUN, open=1, item="rollout 5"), [runner(now, report("attempt"))]


def rings(seen: Seen, first_beat: float, first_look: float) -> float:
    """When the alarm rings, with heartbeats and looks that start then."""
    context: Any = SimpleNamespace(config=Config())
    alarms, beat, look = StallDetector(context), first_beat, first_look
    while True:
        while beat + LIMIT_S / BEATS + ITSELF_S <= look:
            beat += LIMIT_S / BEATS + ITSELF_S
        stage, processes = seen(look, beat)
        named = stall_causes([stage], processes, LIMIT_S)
        if any(alarms._rings(name, stall_cause) for name, stall_cause in named.items()):
            return look + ITSELF_S  # the alarm is reported when the look is done
        look += LIMIT_S / stall_detector.CHECKS_PER_NO_PROGRESS + ITSELF_S
        assert look < 10 * PROMISED_S, "it never rings"


@pytest.mark.parametrize("seen", [hangs, is_lost, is_nobodys, is_stopped])
def test_an_alarm_about_a_stage_rings_within_a_minute_whatever_the_moment_at_which_it_stops(
    seen: Seen,
) -> None:
    latest = max(
        rings(
            seen,
            beat / PHASES * LIMIT_S / BEATS,
            look / PHASES * LIMIT_S / stall_detector.CHECKS_PER_NO_PROGRESS,
        )
        for beat in range(PHASES)
        for look in range(PHASES)
    )
    assert LIMIT_S < latest <= PROMISED_S


def test_a_process_names_its_own_loops_and_its_event_loop_within_a_minute() -> None:
    settings = WatchdogSettings()
    assert settings.no_progress_s == LIMIT_S and settings.lag_s == Config().watchdog.lag_s
    # A loop is seen at the next look; an event loop gets a query at one look, and has not answered at the next.
    assert settings.no_progress_s + settings.poll_interval_s <= PROMISED_S
    assert settings.hangs_s + 2 * settings.poll_interval_s <= PROMISED_S


def test_the_trainer_by_itself_has_the_same_patience() -> None:
    given = ["--run", "a", "--policies", "b", "--subject", "c"]
    parsed = options().parse_args(given)
    assert (parsed.no_progress_s, parsed.lag_s) == (LIMIT_S, Config().watchdog.lag_s)
