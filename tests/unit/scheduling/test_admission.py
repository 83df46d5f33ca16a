"""Admission: how many groups, from which domain, and the sentences at start."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.scheduling.admission import (
    QueueCounts,
    QueueSettings,
    binding,
    check_queue,
    check_shares,
    choose_domains,
    dispatchable,
    idle_warning,
    next_domain,
    window_reach,
)

BASE = QueueSettings(capacity=16, batch_groups=4, group_size=8, max_staleness=1, running_rollouts=64)


def test_running_rollouts_bind_first_at_the_start() -> None:
    assert dispatchable(QueueCounts(), BASE) == 8
    assert dispatchable(QueueCounts(dispatched=7, running_rollouts=56), BASE) == 1
    assert dispatchable(QueueCounts(dispatched=7, running_rollouts=57), BASE) == 0, (
        "7 free slots hold no group of 8"
    )


def test_ready_groups_still_hold_their_place() -> None:
    settings = replace(BASE, max_staleness=9)
    assert dispatchable(QueueCounts(dispatched=16, running_rollouts=0), settings) == 0


def test_staleness_admits_s_plus_1_batches_ahead_of_the_committed_ones() -> None:
    wide = replace(BASE, running_rollouts=10_000)
    assert dispatchable(QueueCounts(), wide) == 8  # (1+1+0)·4
    assert dispatchable(QueueCounts(dispatched=8), wide) == 0
    assert dispatchable(QueueCounts(dispatched=8, consumed=4, committed_batches=1), wide) == 4
    assert dispatchable(QueueCounts(dispatched=8, committed_batches=1), wide) == 4, (
        "committed, not yet published"
    )


def test_groups_resolved_without_training_make_room_for_others() -> None:
    wide = replace(BASE, running_rollouts=10_000)
    assert dispatchable(QueueCounts(dispatched=8, resolved=3), wide) == 3


def test_a_count_over_its_bound_dispatches_nothing() -> None:
    assert dispatchable(QueueCounts(dispatched=40, running_rollouts=100), BASE) == 0


def test_the_first_domains_of_a_stage_follow_the_shares_exactly() -> None:
    shares = {"coding": 3.0, "general": 1.0}
    assert (
        choose_domains(shares, {}, {"coding": 9, "general": 9}, 8)
        == ["coding", "coding", "general", "coding"] * 2
    )


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.integers(1, 300),
)
def test_the_served_mix_stays_near_the_shares(weights: list[int], room: int) -> None:
    shares = {f"d{i}": float(weight) for i, weight in enumerate(weights)}
    chosen = choose_domains(shares, {}, dict.fromkeys(shares, room), room)
    assert len(chosen) == room
    for domain, share in shares.items():
        ahead = chosen.count(domain) - room * share / sum(weights)
        assert -max(1, len(weights) - 1) - 1e-6 < ahead < 1 + 1e-6


def test_a_domain_without_groups_lends_its_turn_and_is_paid_back() -> None:
    shares = {"reasoning": 1.0, "coding": 1.0}
    assert choose_domains(shares, {}, {"coding": 4}, 9) == ["coding"] * 4
    assert choose_domains(shares, {"coding": 4}, {"coding": 9, "reasoning": 9}, 6) == [
        *["reasoning"] * 4,
        "reasoning",
        "coding",
    ]


def test_counting_the_last_k_dispatches_bounds_what_is_paid_back() -> None:
    shares = {"reasoning": 1.0, "coding": 1.0}
    history = ["coding"] * 1000
    for _ in range(40):
        recent = history[-8:]
        served = {domain: recent.count(domain) for domain in shares}
        history.append(next_domain(shares, served, {"coding": 1, "reasoning": 1}) or "")
    assert history[1000:1004] == ["reasoning"] * 4, "half of the last 8 is paid back"
    assert "coding" in history[1004:1010]
    assert all(abs(history[k : k + 8].count("coding") - 4) <= 1 for k in range(1008, 1033))


def test_a_domain_without_a_share_is_not_served_in_this_stage() -> None:
    assert next_domain({"coding": 1.0, "agent": 0.0}, {}, {"agent": 5}) is None
    assert next_domain({"coding": 1.0}, {}, {"agent": 5}) is None
    assert choose_domains({"coding": 1.0}, {}, {"agent": 5, "coding": 2}, 5) == ["coding", "coding"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"capacity": 3}, "queue.capacity is 3 but a batch takes 4 groups.*N >= P"),
        ({"batch_groups": 0}, "at least 1 group"),
        ({"max_staleness": -1}, "cannot be negative"),
        ({"group_size": 1}, "group_size is 1"),
        ({"running_rollouts": 7}, "running_rollouts is 7 but a group has 8"),
        ({"window_fraction": -0.1}, "window_fraction is -0.1"),
        ({"window_fraction": 1.5}, "window_fraction is 1.5"),
        ({"min_batch_groups": 5}, "min_batch_groups is 5: set it between 1 and 4"),
        ({"min_batch_groups": 0}, "min_batch_groups is 0"),
    ],
    ids=lambda x: str(x),
)
def test_numbers_that_cannot_run_are_refused_in_one_sentence(change: dict[str, float], sentence: str) -> None:
    check_queue(BASE)
    with pytest.raises(ConfigurationError, match=sentence):
        check_queue(replace(BASE, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shares", [{}, {"coding": 0.0}, {"coding": -1.0, "agent": 2.0}, {"coding": float("nan")}]
)
def test_shares_that_serve_nothing_are_refused(shares: dict[str, float]) -> None:
    check_shares({"coding": 3.0, "agent": 0.0})
    with pytest.raises(ConfigurationError, match="shares"):
        check_shares(shares)


def test_the_window_warns_when_it_will_idle_the_trainer() -> None:
    settings = replace(BASE, capacity=8, running_rollouts=64)  # W = 2, slots = 8
    assert window_reach(settings, longest_s=50, mean_s=10) == (8 + 2) / (8 * 5)
    warning = idle_warning(settings, longest_s=50, mean_s=10)
    assert warning is not None and "(min(8, 8)+2)/(8*5) = 0.25 < 1" in warning
    assert idle_warning(settings, longest_s=12.5, mean_s=10) is None, "exactly 1 is enough"


@pytest.mark.parametrize(
    ("capacity", "larger"),
    [(16, "queue.capacity"), (24, "queue.capacity and queue.max_staleness"), (64, "queue.max_staleness")],
)
def test_the_warning_counts_the_groups_that_staleness_admits_and_names_the_bound_that_holds(
    capacity: int, larger: str
) -> None:
    settings = QueueSettings(
        capacity=capacity, batch_groups=8, group_size=4, max_staleness=2, running_rollouts=4096
    )
    places = min(24, capacity)
    assert dispatchable(QueueCounts(), settings) == places == settings.places
    later = QueueCounts(dispatched=400 + places, consumed=400, committed_batches=50)
    assert dispatchable(later, settings) == 0
    assert window_reach(settings, longest_s=40, mean_s=10) == (places + settings.window) / (1024 * 4)
    warning = idle_warning(settings, longest_s=40, mean_s=10) or ""
    assert f"(min({capacity}, 24)+{settings.window})/(1024*4)" in warning
    assert f"with a larger {larger} or a larger queue.window_fraction" in warning


def test_the_window_of_fifo_is_one_position_and_greedy_never_waits() -> None:
    slow = replace(BASE, capacity=8, running_rollouts=64)
    fifo, greedy = replace(slow, policy="fifo"), replace(slow, policy="greedy")
    assert window_reach(fifo, longest_s=50, mean_s=10) == (8 + 1) / (8 * 5)
    warning = idle_warning(fifo, longest_s=50, mean_s=10) or ""
    assert (
        "(min(8, 8)+1)/(8*5)" in warning
        and "or another queue.policy" in warning
        and "window_fraction" not in warning
    )
    assert idle_warning(greedy, longest_s=5000, mean_s=10) is None


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        # 11 of 24 are in flight, and yet admission is closed: 23 + 1 groups of (2 + 1 + 3) batches of 4
        (
            QueueCounts(dispatched=25, resolved=1, consumed=13, committed_batches=3),
            "queue.max_staleness = 2 allows (24 groups dispatched and not "
            "filtered, of (2 + 1 + 3 committed batches) × 4 groups = 24) until the next batch is committed",
        ),
        (
            QueueCounts(dispatched=24, committed_batches=9),
            "the queue is full: 24 groups are in flight, and queue.capacity is 24",
        ),
        (
            QueueCounts(dispatched=5, running_rollouts=8),
            "8 rollouts run or wait for a runner, and a group of 4 more would be over rollout.slots + "
            "queue.group_size − 1 = 8 + 4 − 1 = 11",
        ),
    ],
)
def test_the_bound_that_prevents_dispatch_is_named_with_its_key_and_its_sum(
    counts: QueueCounts, sentence: str
) -> None:
    settings = QueueSettings(capacity=24, batch_groups=4, group_size=4, max_staleness=2, running_rollouts=11)
    assert sentence in (binding(counts, settings) or "")


@given(
    st.builds(
        QueueCounts,
        dispatched=st.integers(0, 40),
        resolved=st.integers(0, 5),
        consumed=st.integers(0, 20),
        committed_batches=st.integers(0, 5),
        running_rollouts=st.integers(0, 70),
    )
)
def test_a_bound_is_named_exactly_when_nothing_may_be_dispatched(counts: QueueCounts) -> None:
    assert (binding(counts, BASE) is None) is (dispatchable(counts, BASE) > 0)
