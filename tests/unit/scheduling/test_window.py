"""The windowed FIFO: Figure 5, the bounds, and the pure function against a literal reading of the rule."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.contracts.queue_window import staleness_bound, window_size
from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.simulate import Simulation, simulate
from orchestrator.scheduling.window import QueueRow, floor_after, head, rows_needed, takeable

D, R, T, F = GroupState.DISPATCHED, GroupState.READY, GroupState.TAKEN, GroupState.FILTERED


def queue(
    n: int, p: int, s: int, *, fraction: float = 0.3, policy: str = "windowed", g: int = 2
) -> QueueSettings:
    return QueueSettings(
        capacity=n,
        batch_groups=p,
        group_size=g,
        max_staleness=s,
        running_rollouts=n * g,
        policy=policy,
        window_fraction=fraction,
    )


def literal(states: list[GroupState], window: int, wanted: int) -> list[int]:
    """The rule as written: look at the window, take the oldest ready group, look again."""
    states = list(states)
    taken: list[int] = []
    while len(taken) < wanted:
        i = next((seq for seq, state in enumerate(states) if state not in (T, F)), len(states))
        ready = [seq for seq in range(i, min(i + window, len(states))) if states[seq] == R]
        if not ready:
            break
        states[ready[0]] = T
        taken.append(ready[0])
    return taken


def rows_of(states: list[GroupState]) -> list[QueueRow]:
    return [QueueRow(seq, state) for seq, state in enumerate(states)]


def passes(simulation: Simulation) -> dict[int, int]:
    """For each group: how many younger groups were taken while it was neither taken nor resolved."""
    count: dict[int, int] = {}
    waiting: set[int] = set()
    for t in simulation.queue.history:
        if t.state == D:
            waiting.add(t.seq)
        elif t.state in (T, F):
            waiting.discard(t.seq)
        if t.state == T:
            for older in waiting:
                count[older] = count.get(older, 0) + (older < t.seq)
    return count


def consumed_between(simulation: Simulation) -> dict[int, int]:
    """For each taken group: groups of committed batches that were consumed after its dispatch and before it was consumed."""
    trained = [t.seq for t in simulation.queue.history if t.state == GroupState.TRAINED]
    batch_of = {seq: batch.batch_no for batch in simulation.queue.batches for seq in batch.groups}
    version = {seq: group.version for seq, group in simulation.queue.groups.items()}
    return {seq: sum(version[seq] <= batch_of[o] < batch_of[seq] for o in trained) for seq in trained}


class TestFigure5:
    """N = 8, W = 4, P = 1, consumed at once, group 7 stuck."""

    def run(self, stuck_s: float) -> Simulation:
        durations = [1.0] * 7 + [stuck_s] + [1.0] * 40
        return simulate(queue(8, 1, 7, fraction=0.5), durations)

    def test_the_window_is_half_of_the_queue(self) -> None:
        assert queue(8, 1, 7, fraction=0.5).window == 4

    def test_group_7_stuck_lets_8_9_and_10_pass_and_nothing_else(self) -> None:
        stuck = self.run(math.inf)
        assert stuck.claims == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
        assert stuck.queue.in_state(D, R) == [7, 11, 12, 13, 14, 15, 16, 17]
        assert stuck.queue.in_state(R) == [11, 12, 13, 14, 15, 16, 17], (
            "all others are done and wait for the head"
        )

    def test_nothing_more_is_taken_until_7_ends(self) -> None:
        claims = self.run(100.0).claims
        assert claims[:10] == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
        assert claims[10:] == [7, *range(11, 48)]

    def test_a_resolved_head_frees_the_window_as_a_taken_one_does(self) -> None:
        durations = [1.0] * 7 + [100.0] + [1.0] * 40
        resolved = simulate(queue(8, 1, 7, fraction=0.5), durations, zero_signal=lambda seq: seq == 7)
        assert resolved.claims == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, *range(11, 48)]

    def test_group_7_meets_every_bound_exactly(self) -> None:
        late = self.run(100.0)
        n, w, p, s = 8, 4, 1, 7
        assert passes(late)[7] == w - 1
        assert consumed_between(late)[7] == n + w - 2
        assert late.staleness[7] == s + math.ceil((w - 1) / p)


class TestPureFunction:
    def test_it_agrees_with_the_literal_rule_on_every_queue_of_six(self) -> None:
        for states in product((D, R, T, F), repeat=6):
            rows = rows_of(list(states))
            for window in range(1, 8):
                for wanted in (0, 1, 3, 6):
                    expected = literal(list(states), window, wanted)
                    assert takeable(rows, window, wanted) == expected, (states, window, wanted)

    @given(st.lists(st.sampled_from([D, R, T, F]), max_size=40), st.integers(1, 12), st.integers(0, 12))
    def test_the_oldest_w_plus_wanted_untaken_rows_decide(
        self, states: list[GroupState], window: int, wanted: int
    ) -> None:
        untaken = [row for row in rows_of(states) if row.state in (D, R)]
        few = untaken[: rows_needed(window, wanted)]
        assert takeable(few, window, wanted) == literal(states, window, wanted)

    @given(st.lists(st.sampled_from([D, R, T, F]), max_size=30), st.integers(1, 8), st.integers(0, 10))
    def test_one_claim_of_k_equals_k_claims_of_one(
        self, states: list[GroupState], window: int, wanted: int
    ) -> None:
        at_once = takeable(rows_of(states), window, wanted)
        one_by_one: list[int] = []
        now = list(states)
        for _ in range(wanted):
            for seq in takeable(rows_of(now), window, 1):
                one_by_one.append(seq)
                now[seq] = T
        assert at_once == one_by_one == sorted(one_by_one)

    @given(st.lists(st.sampled_from([D, R, T, F]), max_size=30), st.integers(0, 30))
    def test_a_window_of_one_is_strict_fifo(self, states: list[GroupState], wanted: int) -> None:
        untaken = [row for row in rows_of(states) if row.state in (D, R)]
        ready_prefix: list[int] = []
        for row in untaken:
            if row.state != R:
                break
            ready_prefix.append(row.seq)
        assert takeable(rows_of(states), 1, wanted) == ready_prefix[:wanted]

    @given(
        st.lists(st.sampled_from([D, R, T, F]), min_size=1, max_size=30),
        st.integers(0, 5),
        st.integers(0, 30),
    )
    def test_a_window_over_all_positions_is_greedy(
        self, states: list[GroupState], extra: int, wanted: int
    ) -> None:
        ready = [seq for seq, state in enumerate(states) if state == R]
        assert takeable(rows_of(states), len(states) + extra, wanted) == ready[:wanted]

    @given(st.lists(st.sampled_from([D, R, T, F]), max_size=30), st.integers(1, 8), st.integers(0, 10))
    def test_no_open_position_lies_below_the_new_floor(
        self, states: list[GroupState], window: int, wanted: int
    ) -> None:
        untaken = [row for row in rows_of(states) if row.state in (D, R)][: rows_needed(window, wanted)]
        taken = takeable(untaken, window, wanted)
        floor = floor_after(untaken, taken)
        left = [row.seq for row in rows_of(states) if row.state in (D, R) and row.seq not in taken]
        assert (floor is None) == (not untaken)
        assert floor is None or all(seq >= floor for seq in left)
        assert not (left and untaken) or floor is None or left[0] == floor or left[0] > untaken[-1].seq

    def test_rows_out_of_order_are_a_bug_of_the_caller(self) -> None:
        with pytest.raises(AssertionError, match="ascend"):
            takeable([QueueRow(2, R), QueueRow(1, R)], 4, 2)

    def test_the_head_is_the_oldest_position_neither_taken_nor_resolved(self) -> None:
        assert head(rows_of([T, F, R, D])) == 2
        assert head(rows_of([T, F])) is None

    @given(st.integers(1, 2000), st.integers(1, 100))
    def test_the_window_is_the_exact_floor_of_its_share_and_at_least_one(self, n: int, percent: int) -> None:
        assert window_size(n, percent / 100) == max(1, n * percent // 100)


@st.composite
def runs(draw: st.DrawFn) -> tuple[QueueSettings, list[float], float, frozenset[int]]:
    """A queue with N = (S+1)·P, group durations with a heavy tail, a trainer's pace and the groups without signal."""
    p, s, percent = draw(st.integers(1, 4)), draw(st.integers(0, 3)), draw(st.integers(1, 100))
    shaped = queue((s + 1) * p, p, s, fraction=percent / 100)
    durations = draw(st.lists(st.sampled_from([1.0, 1.0, 1.5, 2.0, 7.0, 40.0]), min_size=1, max_size=40))
    filtered = draw(st.frozensets(st.integers(0, 39), max_size=8))
    return shaped, durations, draw(st.sampled_from([0.0, 0.3, 3.0])), filtered


def outcomes(
    run: tuple[QueueSettings, list[float], float, frozenset[int]],
) -> Iterator[tuple[QueueSettings, Simulation]]:
    shaped, durations, train_s, filtered = run
    yield shaped, simulate(shaped, durations, train_s=train_s, zero_signal=filtered.__contains__)


class TestBounds:
    @settings(max_examples=150, deadline=None)
    @given(runs())
    def test_age_passes_and_consumption_stay_within_their_bounds(
        self, run: tuple[QueueSettings, list[float], float, frozenset[int]]
    ) -> None:
        for shaped, simulation in outcomes(run):
            n, w, p, s = shaped.capacity, shaped.window, shaped.batch_groups, shaped.max_staleness
            assert max(passes(simulation).values(), default=0) <= w - 1
            assert max(consumed_between(simulation).values(), default=0) <= n + w - 2
            assert max(simulation.staleness.values(), default=0) <= s + math.ceil((w - 1) / p)

    @settings(max_examples=150, deadline=None)
    @given(runs(), st.integers(-6, 12), st.sampled_from(["windowed", "fifo"]))
    def test_no_group_trains_later_than_the_documented_bound_whatever_the_capacity(
        self, run: tuple[QueueSettings, list[float], float, frozenset[int]], more: int, policy: str
    ) -> None:
        shaped = run[0]
        capacity = max(shaped.batch_groups, shaped.capacity + more)
        for found, simulation in outcomes((replace(shaped, capacity=capacity, policy=policy), *run[1:])):
            bound = staleness_bound(policy, found.window, found.max_staleness, found.batch_groups)
            assert bound is not None and max(simulation.staleness.values(), default=0) <= bound

    @settings(max_examples=150, deadline=None)
    @given(runs())
    def test_every_run_ends_with_every_group_trained_or_filtered(
        self, run: tuple[QueueSettings, list[float], float, frozenset[int]]
    ) -> None:
        for shaped, simulation in outcomes(run):
            terminal = simulation.queue.in_state(GroupState.TRAINED, GroupState.FILTERED)
            assert terminal == list(range(len(run[1])))
            sizes = [len(b.groups) for b in simulation.queue.batches if b.state == "committed"]
            assert all(size == shaped.batch_groups for size in sizes[:-1])
            assert all(size >= shaped.short_batch for size in sizes)

    def test_a_window_smaller_than_a_batch_does_not_dead_lock(self) -> None:
        shaped = queue(8, 8, 0, fraction=0.1)
        assert shaped.window == 1
        simulation = simulate(shaped, [float(8 - seq % 8) for seq in range(32)])
        assert [b.groups for b in simulation.queue.batches] == [
            tuple(range(i, i + 8)) for i in range(0, 32, 8)
        ]

    def test_the_first_n_groups_are_taken_in_completion_order_when_the_window_is_n(self) -> None:
        simulation = simulate(queue(8, 8, 0, fraction=1.0), [float(8 - seq) for seq in range(8)])
        assert simulation.claims == [7, 6, 5, 4, 3, 2, 1, 0]

    def test_greedy_lets_any_number_pass_a_stuck_group(self) -> None:
        simulation = simulate(queue(4, 1, 3, policy="greedy"), [math.inf] + [1.0] * 30)
        assert simulation.claims == list(range(1, 31))

    def test_fifo_takes_in_dispatch_order_whatever_the_durations(self) -> None:
        simulation = simulate(queue(8, 2, 3, policy="fifo"), [float(1 + seq * 7 % 5) for seq in range(24)])
        assert simulation.claims == list(range(24))
