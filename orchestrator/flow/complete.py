"""From a reported attempt to a terminal rollout to a concluded group: the decisions between results, steps and rewards.

A rollout is complete only when every step that it announced is in the data pool; otherwise it waits, and the reaper runs it again. An
infrastructure failure is retried with the same seq, from its recorded steps or as a new attempt, and never becomes a reward.
"""

from collections.abc import Sequence
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.config import Config
from orchestrator.contracts.events import VerifyAssigned
from orchestrator.contracts.states import FailureClass, FilterReason, GroupState, Purpose, RolloutState
from orchestrator.flow.context import Flow
from orchestrator.flow.dispatcher import assignment
from orchestrator.flow.measures import ordered_again
from orchestrator.flow.reward import reward_group
from orchestrator.log import get
from orchestrator.pool import groups as pool_groups
from orchestrator.pool import history, leases, results, resumes
from orchestrator.pool.dispatch import Assignment
from orchestrator.pool.outbox import owe
from orchestrator.pool.results import Reported
from orchestrator.pool.transact import when_committed
from orchestrator.rewards.settings import RewardSettings
from orchestrator.scheduling.completion import Member, conclude

log = get(__name__)

RETRIED = frozenset({FailureClass.INFRA_FAILURE})


async def complete_reported(connection: AsyncConnection, flow: Flow, rollout_ids: Sequence[int]) -> None:
    """Move every given rollout that is reported and whose steps are all in; wait for the others. May end groups."""
    await history.lock_run(connection, flow.run_id)
    for found in await results.reported(connection, rollout_ids):
        await _complete(connection, flow, found)


async def _complete(connection: AsyncConnection, flow: Flow, found: Reported) -> None:
    if found.failure_class in RETRIED:
        if found.resumable and found.arrived < found.announced:
            return  # what is on its way need not be generated again
        await run_again(
            connection,
            flow,
            found.rollout_id,
            found.epoch,
            RolloutState.REPORTED,
            found.reason or "infra_failure",
            resumable=found.resumable and (found.digest_matches or not found.announced),
        )
        return
    if found.failure_class is FailureClass.CANCELLED or (
        found.failure_class is FailureClass.TIMEOUT
        and not flow.config.rollout.train_timeouts
        and found.purpose == Purpose.TRAIN
    ):
        if await leases.lose(
            connection,
            found.rollout_id,
            RolloutState.REPORTED,
            found.epoch,
            found.failure_class,
            found.reason or found.failure_class,
        ):
            await conclude_group(connection, flow, found.group_id)
        return
    if found.arrived < found.announced:
        return  # the rest is on its way; the lease of the report bounds the wait
    if found.arrived > found.announced or not found.digest_matches:
        await history.count(connection, flow.run_id, "digests_wrong")
        await run_again(
            connection, flow, found.rollout_id, found.epoch, RolloutState.REPORTED,
            "the stored steps do not have the announced digest",
        )  # fmt: skip
        return
    epoch = await results.finish(connection, found.rollout_id, found.epoch, found.failure_class)
    if epoch is not None:
        await assign_verification(connection, flow, found.rollout_id, found.attempt, epoch, found.purpose)


async def assign_verification(
    connection: AsyncConnection,
    flow: Flow,
    rollout_id: int,
    attempt: int,
    epoch: int,
    purpose: str,
    *,
    delay_s: float = 0.0,
) -> None:
    """Owe the verifier runners an assignment for this epoch."""
    subject, event = verification(flow, rollout_id, attempt, epoch, purpose)
    await owe(connection, flow.run_id, subject, event, delay_s=delay_s)
    flow.signals.outbox.set()


def verification(
    flow: Flow, rollout_id: int, attempt: int, epoch: int, purpose: str
) -> tuple[str, VerifyAssigned]:
    """The subject and message that assign a verification."""
    pool = subjects.POOL_DEFAULT if purpose == Purpose.TRAIN else subjects.POOL_EVAL
    return subjects.work_verify(flow.run, pool), VerifyAssigned(
        run=flow.run, rollout=rollout_id, attempt=attempt, epoch=epoch
    )


async def run_again(
    connection: AsyncConnection,
    flow: Flow,
    rollout_id: int,
    epoch: int,
    before: RolloutState,
    reason: str,
    *,
    resumable: bool = False,
    given_back: bool = False,
) -> None:
    """A resume of what can be resumed; else a new attempt, or with the attempts used up, poison. Either under a new epoch, after a delay
    that doubles. Those given back do not count."""
    if resumable and await _resume(connection, flow, rollout_id, epoch, before, reason, given_back):
        return
    failed = await leases.failures(connection, rollout_id)
    if failed >= flow.config.queue.max_attempts:
        lost = f"{failed} attempts failed; the last one: {reason}"
        if await leases.lose(connection, rollout_id, before, epoch, FailureClass.POISON, lost):
            await conclude_group(connection, flow, await leases.group_of(connection, rollout_id))
        return
    delay_s = flow.config.rollout.retry_delay_s * 2 ** max(0, failed - 1)
    retried = await leases.retry(connection, rollout_id, before, epoch, reason=reason, delay_s=delay_s)
    if retried is None:
        return
    ordered_again("attempt", FailureClass.INFRA_FAILURE)
    _say("rollout.retry", rollout=rollout_id, attempt=retried[0], epoch=retried[1], reason=reason)
    await _assign(connection, flow, rollout_id, retried[0], retried[1], delay_s)


async def _resume(
    connection: AsyncConnection,
    flow: Flow,
    rollout_id: int,
    epoch: int,
    before: RolloutState,
    reason: str,
    given_back: bool,
) -> bool:
    """The same attempt once more, from its recorded steps. False: it cannot be resumed."""
    section = flow.config.rollout
    resumed = await resumes.resume(
        connection,
        rollout_id,
        before,
        epoch,
        reason=reason,
        given_back=given_back,
        most=section.max_resumes,
        retry_delay_s=section.retry_delay_s,
    )
    if resumed is None:
        return False
    ordered_again("resume", FailureClass.INFRA_FAILURE)
    _say(
        "rollout.resume",
        rollout=rollout_id,
        attempt=resumed.attempt,
        epoch=resumed.epoch,
        steps=resumed.steps,
        reason=reason,
    )
    await _assign(connection, flow, rollout_id, resumed.attempt, resumed.epoch, resumed.delay_s)
    return True


async def _assign(
    connection: AsyncConnection, flow: Flow, rollout_id: int, attempt: int, epoch: int, delay_s: float
) -> None:
    pool = await leases.pool_of(connection, rollout_id)
    subject, event = assignment(flow, Assignment(rollout_id, attempt, epoch, pool))
    await owe(connection, flow.run_id, subject, event, delay_s=delay_s)
    flow.signals.outbox.set()


async def conclude_group(connection: AsyncConnection, flow: Flow, group_id: int) -> None:
    """If every member is terminal: write the rewards and make the group ready, scored, filtered or dead."""
    group = await pool_groups.terminal_group(connection, flow.run_id, group_id)
    if group is None:
        return
    flow.signals.work.set()
    reason: str | None
    wrong = [m for m in group.members if _wrong_version(group.pinned_version, m)]
    if wrong:
        await _concluded(connection, group, GroupState.FILTERED, FilterReason.WRONG_VERSION)
        return
    if all(m.failure is FailureClass.POISON for m in group.members):
        reason = f"poison: {group.members[0].reason}"
        await _concluded(connection, group, GroupState.DEAD, reason)
        when_committed(partial(log.warning, "group.dead", group=group_id, reason=reason))
        return
    members = [Member(m.member, m.state, m.failure) for m in group.members]
    # An evaluation counts every verdict: leaving out those that ran out of time would make the policy look better than it is.
    timeouts = flow.config.rollout.train_timeouts or group.purpose is not Purpose.TRAIN
    decided = conclude(members, zero_signal=False, purpose=group.purpose, train_timeouts=timeouts)
    state, reason = decided.state, decided.reason
    if state in (GroupState.READY, GroupState.SCORED):
        rewarded = reward_group(group, decided.members, reward_settings(flow.config))
        await pool_groups.write_rewards(connection, flow.run_id, rewarded.rewards)
        if rewarded.zero_signal and group.purpose is Purpose.TRAIN:
            state, reason = GroupState.FILTERED, FilterReason.ZERO_SIGNAL
    await _concluded(connection, group, state, reason)


async def _concluded(
    connection: AsyncConnection, group: pool_groups.TerminalGroup, state: GroupState, reason: str | None
) -> None:
    await pool_groups.conclude(connection, group.group_id, state, reason)
    members = [member.rollout_id for member in group.members]
    _say("group.concluded", group=group.group_id, rollouts=members, state=state, reason=reason)


def _say(event: str, **facts: object) -> None:
    """A line of the log, once what it says is committed."""
    when_committed(partial(log.info, event, **facts))


def _wrong_version(pinned: int | None, member: pool_groups.GroupMember) -> bool:
    return pinned is not None and any(step.versions - {pinned} for step in member.steps)


def reward_settings(config: Config) -> RewardSettings:
    """The pure core's view of the configuration."""
    section = config.reward
    return RewardSettings(
        process_weight=section.process_weight,
        speed_weight=section.speed_weight,
        gamma=section.gamma,
        leave_one_out=section.leave_one_out,
        advantage_std=section.advantage_std,
        zero_signal=section.zero_signal,
    )
