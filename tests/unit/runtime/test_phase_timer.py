"""The use of seconds in a train step."""

import time
from collections.abc import Iterator

import pytest

from orchestrator.runtime.phase_timer import collect, phase


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    yield now


def test_a_stretch_inside_another_is_the_inner_ones_alone(clock: list[float]) -> None:
    with collect() as count:
        clock[0] += 1  # in no phase
        with phase("backward"):
            clock[0] += 2
            with phase("forward"):
                clock[0] += 4
            clock[0] += 8
        with phase("forward"):
            clock[0] += 16
    assert count.seconds == {"backward": 10, "forward": 20}


def test_without_a_counter_nothing_is_counted_and_an_error_passes(clock: list[float]) -> None:
    with collect() as count, pytest.raises(ValueError, match="broken"), phase("tree"):
        clock[0] += 3
        raise ValueError("broken")
    with phase("tree"):
        clock[0] += 5
    assert count.seconds == {"tree": 3}
