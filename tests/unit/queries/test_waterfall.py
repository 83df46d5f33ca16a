"""Where bars lie: by the steps' times, one above the other where calls overlapped; end to end where steps only have durations."""

from orchestrator.queries.waterfall import StepTimes, WaterfallBar, step_bars


def spans(bars: list[WaterfallBar], kind: str) -> list[tuple[float, float]]:
    return [(bar.start, bar.end) for bar in bars if bar.kind == kind]


def test_calls_at_the_same_time_lie_where_they_were_and_the_gap_before_them_is_one() -> None:
    """Three calls on a server of one slot, after one that ended at 3 and 2 s of tools; their records came late and in another order."""
    first = StepTimes(idx=0, queue=0.0, first=0.0, generation=1.0, gap=0.0, recorded=20.0, ended=3.0, lease=1)
    together = [
        StepTimes(
            idx=1 + n,
            queue=float(n),
            first=0.0,
            generation=1.0,
            gap=0.0,
            recorded=20.0 - n,
            ended=6.0 + n,
            lease=1,
        )
        for n in range(3)
    ]
    bars = step_bars([first, *together], {1: 0.5})
    assert spans(bars, "start") == [(0.5, 2.0)]
    assert spans(bars, "generation") == [(2.0, 3.0), (5.0, 6.0), (6.0, 7.0), (7.0, 8.0)]
    assert spans(bars, "queue") == [(5.0, 6.0), (5.0, 7.0)]
    assert spans(bars, "gap") == [(3.0, 5.0)]


def test_a_resumed_attempt_starts_again_under_its_next_lease_and_the_time_between_is_not_a_gap_of_the_agent() -> (
    None
):
    steps = [
        StepTimes(idx=0, queue=0.0, first=0.0, generation=1.0, gap=0.0, recorded=3.0, ended=2.0, lease=1),
        StepTimes(idx=1, queue=0.0, first=0.0, generation=1.0, gap=0.0, recorded=40.0, ended=40.0, lease=2),
    ]
    bars = step_bars(steps, {1: 0.0, 2: 30.0})
    assert spans(bars, "start") == [(0.0, 1.0), (30.0, 39.0)] and spans(bars, "gap") == []
    assert spans(bars, "generation") == [(1.0, 2.0), (39.0, 40.0)]


def test_an_attempt_with_a_step_that_does_not_say_when_it_ended_is_laid_end_to_end() -> None:
    bars = step_bars(
        [
            StepTimes(idx=0, queue=0.0, first=0.0, generation=1.0, gap=0.0, recorded=3.0),
            StepTimes(idx=1, queue=0.0, first=0.0, generation=2.0, gap=4.0, recorded=30.0, ended=29.0),
        ]
    )
    assert spans(bars, "generation") == [(2.0, 3.0), (7.0, 9.0)] and spans(bars, "gap") == [(3.0, 7.0)]
