"""The recorded history converted back into claims."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.queue_policies import Greedy, Windowed
from orchestrator.scheduling.replay import Claim, Transition, replay
from orchestrator.scheduling.simulate import simulate


def history(*events: tuple[int, str]) -> list[Transition]:
    return [Transition(order, seq, GroupState(state)) for order, (seq, state) in enumerate(events)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1.0, 2.0, 9.0]), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from(["fifo", "windowed", "greedy"]),
    st.randoms(),
)
def test_it_makes_every_claim_of_the_simulator_again(
    durations: list[float], p: int, n: int, policy: str, random: Random
) -> None:
    shaped = QueueSettings(
        capacity=max(n, p), batch_groups=p, group_size=2, max_staleness=3, running_rollouts=16, policy=policy
    )
    simulation = simulate(shaped, durations, train_s=1.5, zero_signal=lambda seq: seq % 5 == 3)
    recorded = list(simulation.queue.history)
    random.shuffle(recorded)
    claims = replay(recorded, simulation.queue.policy)
    assert all(claim.agrees for claim in claims)
    assert sorted(seq for claim in claims for seq in claim.derived) == sorted(simulation.claims)


def test_a_take_beyond_the_window_is_found_out_and_spoils_no_later_claim() -> None:
    recorded = history(
        *[(seq, "dispatched") for seq in range(6)],
        *[(seq, "ready") for seq in (1, 2, 5)],
        (5, "taken"),  # the window of 3 ends at 2
        (0, "ready"),
        (0, "taken"),
        (1, "taken"),
    )
    assert replay(recorded, Windowed(3)) == [Claim(9, (5,), (1,)), Claim(11, (0, 1), (0, 1))]
    assert [claim.agrees for claim in replay(recorded, Windowed(3))] == [False, True]


def test_a_younger_group_taken_before_an_older_ready_one_is_found_out() -> None:
    recorded = history(
        (0, "dispatched"), (1, "dispatched"), (0, "ready"), (1, "ready"), (1, "taken"), (0, "trained")
    )
    assert [claim.agrees for claim in replay(recorded, Windowed(4))] == [False]


def test_a_group_taken_twice_is_found_out() -> None:
    recorded = history((0, "dispatched"), (0, "ready"), (0, "taken"), (0, "trained"), (0, "taken"))
    assert replay(recorded, Greedy())[-1] == Claim(4, (0,), ())


def test_a_resolved_head_moves_the_window_and_a_rewound_group_comes_back() -> None:
    recorded = history(
        (0, "dispatched"), (1, "dispatched"), (2, "dispatched"), (2, "ready"),
        (0, "filtered"), (1, "dead"), (2, "taken"), (2, "trained"),
        (2, "ready"), (2, "taken"),
    )  # fmt: skip
    claims = replay(recorded, Windowed(1))
    assert [(claim.recorded, claim.agrees) for claim in claims] == [((2,), True), ((2,), True)]


def test_evaluation_groups_and_an_empty_history_make_no_claim() -> None:
    assert replay([], Windowed(2)) == []
    assert replay(history((0, "dispatched"), (0, "scored")), Windowed(2)) == []
