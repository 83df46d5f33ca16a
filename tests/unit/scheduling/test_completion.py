"""The fate of a group whose members are all terminal."""

from itertools import product

import pytest

from orchestrator.contracts.states import (
    GROUP_TRANSITIONS,
    FailureClass,
    FilterReason,
    GroupState,
    Purpose,
    RolloutState,
)
from orchestrator.scheduling.completion import Conclusion, Member, conclude, trainable


def group(*failures: FailureClass) -> list[Member]:
    """Members as the failure classes leave them: verified if the policy must be graded, else lost."""
    graded = (FailureClass.COMPLETED, FailureClass.POLICY_FAILURE, FailureClass.TIMEOUT)
    return [
        Member(i, RolloutState.VERIFIED if failure in graded else RolloutState.LOST, failure)
        for i, failure in enumerate(failures)
    ]


OK, POLICY, TIMEOUT = FailureClass.COMPLETED, FailureClass.POLICY_FAILURE, FailureClass.TIMEOUT
INFRA, VERIFIER, POISON, CANCELLED = (
    FailureClass.INFRA_FAILURE,
    FailureClass.VERIFIER_FAILURE,
    FailureClass.POISON,
    FailureClass.CANCELLED,
)


def test_lost_members_leave_and_the_rest_train() -> None:
    members = group(OK, INFRA, POLICY, OK, VERIFIER, OK, POISON, CANCELLED)
    assert conclude(members, zero_signal=False) == Conclusion(GroupState.READY, None, (0, 2, 3, 5))


@pytest.mark.parametrize(("size", "fewest"), [(2, 2), (3, 2), (4, 2), (5, 3), (6, 3), (8, 4), (9, 5)])
def test_half_of_the_group_and_at_least_two_must_be_left(size: int, fewest: int) -> None:
    enough = group(*[OK] * fewest, *[INFRA] * (size - fewest))
    short = group(*[OK] * (fewest - 1), *[INFRA] * (size - fewest + 1))
    assert conclude(enough, zero_signal=False).state == GroupState.READY
    assert conclude(short, zero_signal=False) == Conclusion(
        GroupState.FILTERED, FilterReason.TOO_FEW, tuple(range(fewest - 1))
    )


def test_a_group_without_signal_is_filtered_unless_it_is_too_small_anyway() -> None:
    assert conclude(group(OK, OK, POLICY), zero_signal=True).reason == FilterReason.ZERO_SIGNAL
    assert conclude(group(OK, INFRA), zero_signal=True).reason == FilterReason.TOO_FEW


def test_timeouts_train_as_what_they_achieved_or_leave_by_configuration() -> None:
    members = group(TIMEOUT, OK, TIMEOUT, OK)
    assert trainable(members) == (0, 1, 2, 3)
    assert trainable(members, train_timeouts=False) == (1, 3)
    assert (
        conclude(group(TIMEOUT, TIMEOUT, OK), zero_signal=False, train_timeouts=False).reason
        == FilterReason.TOO_FEW
    )


def test_a_cancelled_group_says_so() -> None:
    assert conclude(group(CANCELLED, CANCELLED), zero_signal=False).reason == FilterReason.CANCELLED


@pytest.mark.parametrize("purpose", [Purpose.EVAL, Purpose.RECORD])
def test_evaluation_and_recording_are_scored_with_the_members_that_have_a_verdict(purpose: Purpose) -> None:
    scored = conclude(group(OK, INFRA, INFRA), zero_signal=True, purpose=purpose)
    assert scored == Conclusion(GroupState.SCORED, None, (0,))
    assert conclude(group(INFRA, INFRA), zero_signal=True, purpose=purpose).reason == FilterReason.TOO_FEW


def test_a_group_is_not_concluded_while_a_member_runs() -> None:
    running = [*group(OK, OK), Member(2, RolloutState.VERIFYING, OK)]
    with pytest.raises(AssertionError, match="last member"):
        conclude(running, zero_signal=False)


def test_no_infrastructure_failure_ever_trains_and_every_conclusion_is_a_legal_transition() -> None:
    for failures in product(FailureClass, repeat=4):
        for zero_signal, purpose, timeouts in product((False, True), Purpose, (False, True)):
            members = group(*failures)
            end = conclude(members, zero_signal=zero_signal, purpose=purpose, train_timeouts=timeouts)
            assert end.state in GROUP_TRANSITIONS[GroupState.DISPATCHED]
            assert (end.reason is None) == (end.state in (GroupState.READY, GroupState.SCORED))
            assert all(failures[i] in (OK, POLICY, TIMEOUT) for i in end.members)
