"""What becomes of a group whose members are all terminal.

A member that was lost (attempts used up, no verdict, cancelled) leaves baseline and batch: an infrastructure failure never
becomes a reward. A group with too few members left, or whose members all did equally well, resolves its position without being
trained; the reason is recorded and the head moves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.contracts.states import (
    ROLLOUT_TERMINAL,
    FailureClass,
    FilterReason,
    GroupState,
    Purpose,
    RolloutState,
)


@dataclass(frozen=True, slots=True)
class Member:
    """One rollout of a group, at its end. `failure` is the failure class of its last attempt."""

    index: int
    state: RolloutState
    failure: FailureClass


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The group's next state. `members` are those that train (ready) or count (scored); `reason` is set when filtered."""

    state: GroupState
    reason: FilterReason | None
    members: tuple[int, ...]


def fewest_members(group_size: int) -> int:
    """max(2, ⌈G/2⌉): with fewer trainable members a group has no usable baseline.

    >>> [fewest_members(g) for g in (2, 3, 4, 5, 8)]
    [2, 2, 2, 3, 4]
    """
    return max(2, math.ceil(group_size / 2))


def trainable(members: Sequence[Member], *, train_timeouts: bool = True) -> tuple[int, ...]:
    """Indices of the members that have a verdict and may train; all must be terminal.

    `train_timeouts`: an agent that ran out of its own wall-clock time counts as what it achieved; else it leaves the group.
    """
    assert all(member.state in ROLLOUT_TERMINAL for member in members), (
        "a group is concluded when its last member ends"
    )
    kept = {FailureClass.COMPLETED, FailureClass.POLICY_FAILURE} | (
        {FailureClass.TIMEOUT} if train_timeouts else set()
    )
    return tuple(m.index for m in members if m.state == RolloutState.VERIFIED and m.failure in kept)


def conclude(
    members: Sequence[Member],
    *,
    zero_signal: bool,
    purpose: Purpose = Purpose.TRAIN,
    train_timeouts: bool = True,
) -> Conclusion:
    """Decide the group's state from its G terminal members.

    `zero_signal`: the rewards of the trainable members say that there is nothing to learn (`rewards.returns.zero_signal`).
    Groups of purpose eval and record are scored with whoever has a verdict; without any they are filtered too.

    >>> verified = [Member(i, RolloutState.VERIFIED, FailureClass.COMPLETED) for i in range(3)]
    >>> lost = [Member(i, RolloutState.LOST, FailureClass.INFRA_FAILURE) for i in range(3, 8)]
    >>> conclude(verified + lost, zero_signal=False).reason.value  # 3 of 8 left, 4 needed
    'too_few'
    """
    assert members
    kept = trainable(members, train_timeouts=train_timeouts)
    if purpose != Purpose.TRAIN and kept:
        return Conclusion(GroupState.SCORED, None, kept)
    if all(member.failure == FailureClass.CANCELLED for member in members):
        return Conclusion(GroupState.FILTERED, FilterReason.CANCELLED, kept)
    if purpose != Purpose.TRAIN or len(kept) < fewest_members(len(members)):
        return Conclusion(GroupState.FILTERED, FilterReason.TOO_FEW, kept)
    if zero_signal:
        return Conclusion(GroupState.FILTERED, FilterReason.ZERO_SIGNAL, kept)
    return Conclusion(GroupState.READY, None, kept)
