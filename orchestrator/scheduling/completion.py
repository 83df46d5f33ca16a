"""Decides the next state of a group whose members are all terminal.

A lost member (attempts used up, no verdict, cancelled) is not in the baseline and the batch: an infrastructure failure never
becomes a reward. A group with too few members left, or with equally good members, resolves its position without being
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
    """The group's next state. `members` are those that train (ready) or count (scored); `reason` is set if filtered."""

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
    """Indices of the members that have a verdict and may train. All members must be terminal.

    `train_timeouts`: an agent that used up its own wall-clock time counts with its achievement; otherwise it leaves the group.
    """
    assert all(member.state in ROLLOUT_TERMINAL for member in members), (
        "a group is concluded when its last member ends"
    )
    trainable_classes = {FailureClass.COMPLETED, FailureClass.POLICY_FAILURE} | (
        {FailureClass.TIMEOUT} if train_timeouts else set()
    )
    return tuple(
        m.index for m in members if m.state == RolloutState.VERIFIED and m.failure in trainable_classes
    )


def conclude(
    members: Sequence[Member],
    *,
    zero_signal: bool,
    purpose: Purpose = Purpose.TRAIN,
    train_timeouts: bool = True,
) -> Conclusion:
    """Decide the group's state from its G terminal members.

    `zero_signal`: the rewards of the trainable members contain nothing to learn (`rewards.comparison.compared`).
    Groups of purpose eval and record are scored with all members that have a verdict. Without any verdict they are filtered too.

    >>> verified = [Member(i, RolloutState.VERIFIED, FailureClass.COMPLETED) for i in range(3)]
    >>> lost = [Member(i, RolloutState.LOST, FailureClass.INFRA_FAILURE) for i in range(3, 8)]
    >>> conclude(verified + lost, zero_signal=False).reason.value  # 3 of 8 left, 4 needed
    'too_few'
    """
    assert members
    indices = trainable(members, train_timeouts=train_timeouts)
    if purpose != Purpose.TRAIN and indices:
        return Conclusion(GroupState.SCORED, None, indices)
    if all(member.failure == FailureClass.CANCELLED for member in members):
        return Conclusion(GroupState.FILTERED, FilterReason.CANCELLED, indices)
    if purpose != Purpose.TRAIN or len(indices) < fewest_members(len(members)):
        return Conclusion(GroupState.FILTERED, FilterReason.TOO_FEW, indices)
    if zero_signal:
        return Conclusion(GroupState.FILTERED, FilterReason.ZERO_SIGNAL, indices)
    return Conclusion(GroupState.READY, None, indices)
