"""With the default settings, every alarm about what makes no progress rings within a minute of the last progress."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.config import Config
from orchestrator.flow import overseer
from orchestrator.flow.overseer import Overseer
from orchestrator.pool.culprits import culprits
from orchestrator.pool.presence import BEATS, LoopReport, ProcessReport
from orchestrator.pool.stages import Stage
from orchestrator.progress import Loop
from orchestrator.watchdog import WatchdogSettings
from trainer.__main__ import options

PROMISED_S = 60.0
ITSELF_S = 1.0  # a heartbeat, a look: so long may the data pool take for each
PHASES = 10  # of the heartbeat and of the look, against the moment at which the progress ends
LIMIT_S = Config().watchdog.no_progress_s

Seen = Callable[[float, float], tuple[Stage, list[ProcessReport]]]
"""(now, time of the last heartbeat) → what a look finds."""


def runner(silent_s: float, *loops: LoopReport) -> ProcessReport:
    return ProcessReport("here", "runner", 7, silent_s, False, loops)


def report(name: str, *, stuck_s: float = 0.0) -> LoopReport:
    return LoopReport(name, "rollout 5", "", not stuck_s, 0.0, stuck_s, "", 0)


def hangs(now: float, beat: float) -> tuple[Stage, list[ProcessReport]]:
    """A loop makes no progress from 0 on. Nothing is late: an attempt may take longer."""
    loop = Loop("attempt", since=0.0)
    stuck_s = loop.stuck_for(beat, LIMIT_S)
    return Stage("run", 1, "rollout 5"), [runner(now - beat, report("attempt", stuck_s=stuck_s))]


def is_lost(now: float, beat: float) -> tuple[Stage, list[ProcessReport]]:
    """Nobody was told of a rollout that is due since 0."""
    return Stage("lease", 1, "rollout 5", now, now), [runner(now - beat, report("rollouts"))]


def is_nobodys(now: float, beat: float) -> tuple[Stage, list[ProcessReport]]:
    """No runner has ever been there."""
    return Stage("lease", 1, "rollout 5", now, now), []


def is_stopped(now: float, beat: float) -> tuple[Stage, list[ProcessReport]]:
    """The only runner stands still from 0 on, just after a heartbeat."""
    return Stage("run", 1, "rollout 5"), [runner(now, report("attempt"))]


def rings(seen: Seen, first_beat: float, first_look: float) -> float:
    """When the alarm rings, with heartbeats and looks that begin then."""
    flow: Any = SimpleNamespace(config=Config())
    alarms, beat, look = Overseer(flow), first_beat, first_look
    while True:
        while beat + LIMIT_S / BEATS + ITSELF_S <= look:
            beat += LIMIT_S / BEATS + ITSELF_S
        stage, processes = seen(look, beat)
        named = culprits([stage], processes, LIMIT_S)
        if any(alarms._rings(name, culprit) for name, culprit in named.items()):
            return look + ITSELF_S  # it is said when the look is done
        look += LIMIT_S / overseer.LOOKS + ITSELF_S
        assert look < 10 * PROMISED_S, "it never rings"


@pytest.mark.parametrize("seen", [hangs, is_lost, is_nobodys, is_stopped])
def test_an_alarm_about_a_stage_rings_within_a_minute_whatever_the_moment_at_which_it_stops(
    seen: Seen,
) -> None:
    latest = max(
        rings(seen, beat / PHASES * LIMIT_S / BEATS, look / PHASES * LIMIT_S / overseer.LOOKS)
        for beat in range(PHASES)
        for look in range(PHASES)
    )
    assert LIMIT_S < latest <= PROMISED_S


def test_a_process_names_its_own_loops_and_its_event_loop_within_a_minute() -> None:
    settings = WatchdogSettings()
    assert settings.no_progress_s == LIMIT_S and settings.lag_s == Config().watchdog.lag_s
    # A loop is seen at the next look; an event loop is asked at one, and has not answered at the next.
    assert settings.no_progress_s + settings.look_s <= PROMISED_S
    assert settings.hangs_s + 2 * settings.look_s <= PROMISED_S


def test_the_trainer_by_itself_has_the_same_patience() -> None:
    given = ["--run", "a", "--policies", "b", "--subject", "c"]
    parsed = options().parse_args(given)
    assert (parsed.no_progress_s, parsed.lag_s) == (LIMIT_S, Config().watchdog.lag_s)
