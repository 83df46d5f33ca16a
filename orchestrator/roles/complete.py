"""From a reported attempt to a terminal rollout to a concluded group: the decisions between results, steps and rewards.

A rollout is complete only when every announced step is in the data pool; until then it waits, and the reaper runs it again if its lease expires.
An infrastructure failure is retried with the same seq, from its recorded steps or as a new attempt, and never becomes a reward.
"""

from collections.abc import Sequence
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.contracts.events import VerifyAssigned
from orchestrator.contracts.states import FailureClass, FilterReason, GroupState, Purpose, RolloutState
from orchestrator.pool import groups as pool_groups
from orchestrator.pool import (
    leases,
    results,
    resumes,
    speed_noise,
    transitions,
)
from orchestrator.pool.dispatch import Assignment
from orchestrator.pool.outbox import enqueue
from orchestrator.pool.results import Reported
from orchestrator.pool.transact import NotReady, passing, when_committed
from orchestrator.rewards.settings import RewardSettings
from orchestrator.roles.context import Flow
from orchestrator.roles.dispatcher import assignment
from orchestrator.roles.metrics import ordered_again
from orchestrator.roles.reward import reward_group
from orchestrator.roles.speed_noise import conclude_measurement, measure
from orchestrator.runtime.backoff import doubled
from orchestrator.runtime.log import get
from orchestrator.scheduling.completion import Member, conclude

log = get(__name__)

RETRIED = frozenset({FailureClass.INFRA_FAILURE})
HOPELESS = frozenset({FailureClass.POISON, FailureClass.VERIFIER_FAILURE})
"""Failures that lose a member for good. If all members of a group fail like this, the group is dead: its task or its tests need a fix."""


async def complete_reported(connection: AsyncConnection, flow: Flow, rollout_ids: Sequence[int]) -> None:
    """Advance every given rollout that is reported and has all its steps; the others wait. May conclude groups."""
    await transitions.lock_run(connection, flow.run_id)
    for found in await results.reported(connection, rollout_ids):
        await _complete(connection, flow, found)


async def _complete(connection: AsyncConnection, flow: Flow, found: Reported) -> None:
    if found.failure_class in RETRIED:
        if found.resumable and found.arrived < found.announced:
            return  # steps on their way need not be generated again
        await run_again(
            connection,
            flow,
            found.rollout_id,
            found.epoch,
            RolloutState.REPORTED,
            found.reason or found.failure_class,
            resumable=found.resumable and (found.digest_matches or not found.announced),
        )
        return
    if found.failure_class is FailureClass.CANCELLED or (
        found.failure_class is FailureClass.TIMEOUT
        and not flow.config.rollout.train_timeouts
        and found.purpose is Purpose.TRAIN
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
        return  # the rest is on its way; the report's lease bounds the wait
    if found.arrived > found.announced or not found.digest_matches:
        await transitions.count(connection, flow.run_id, "digests_wrong")
        await run_again(
            connection,
            flow,
            found.rollout_id,
            found.epoch,
            RolloutState.REPORTED,
            "the stored steps do not have the announced digest",
        )
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
    purpose: Purpose,
    *,
    delay_s: float = 0.0,
) -> None:
    """Put an assignment for this epoch into the outbox, for the verifier runners."""
    subject, event = verification(flow, rollout_id, attempt, epoch, purpose)
    await enqueue(connection, flow.run_id, subject, event, delay_s=delay_s)
    flow.signals.outbox.set()


def verification(
    flow: Flow, rollout_id: int, attempt: int, epoch: int, purpose: Purpose
) -> tuple[str, VerifyAssigned]:
    """The subject and message that assign a verification."""
    pool = subjects.POOL_DEFAULT if purpose is Purpose.TRAIN else subjects.POOL_EVAL
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
    """Resume the attempt if possible, otherwise start a new one. With all attempts used up, the rollout is lost as poison. Retries get a new epoch
    and a delay that doubles (`backoff.doubled`). Returned leases do not count as failures."""
    if resumable and await _resume(connection, flow, rollout_id, epoch, before, reason, given_back):
        return
    failed = await leases.failures(connection, rollout_id)
    if failed >= flow.config.queue.max_attempts:
        lost = f"{failed} attempts failed; the last one: {reason}"
        if await leases.lose(connection, rollout_id, before, epoch, FailureClass.POISON, lost):
            await conclude_group(connection, flow, await leases.group_of(connection, rollout_id))
        return
    delay_s = doubled(flow.config.rollout.retry_delay_s, failed - 1)
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
    """Run the same attempt again from its recorded steps. False: it cannot be resumed."""
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
    subject, event = assignment(
        flow, Assignment(rollout_id=rollout_id, attempt=attempt, epoch=epoch, pool=pool)
    )
    await enqueue(connection, flow.run_id, subject, event, delay_s=delay_s)
    flow.signals.outbox.set()


async def conclude_group(connection: AsyncConnection, flow: Flow, group_id: int) -> None:
    """If every member is terminal: write the rewards and make the group ready, scored, filtered or dead. Raises NotReady, to be repeated,
    while the rewards are computed."""
    group = await pool_groups.terminal_group(connection, flow.run_id, group_id)
    if group is None:  # its rewards stay: a verdict that is held may need them
        return
    flow.signals.work.set()
    reason: str | None
    silent: str | None = None
    wrong = [m for m in group.members if _wrong_version(group.pinned_version, m)]
    if wrong:
        await _concluded(connection, group, GroupState.FILTERED, FilterReason.WRONG_VERSION)
        return
    if all(m.failure in HOPELESS for m in group.members):
        reason = f"{group.members[0].failure}: {group.members[0].reason}"
        await _concluded(connection, group, GroupState.DEAD, reason)
        when_committed(partial(log.warning, "group.dead", group=group_id, reason=reason))
        return
    members = [Member(m.member, m.state, m.failure) for m in group.members]
    # An evaluation counts every verdict: without the timeouts the policy would look better than it is.
    timeouts = flow.config.rollout.train_timeouts or group.purpose is not Purpose.TRAIN
    decided = conclude(members, zero_signal=False, purpose=group.purpose, train_timeouts=timeouts)
    state, reason = decided.state, decided.reason
    if state in (GroupState.READY, GroupState.SCORED):
        noise = await speed_noise.newest(connection, flow.run_id, group.scaffold)
        try:
            inputs = group, decided.members, RewardSettings.of(flow.config.reward), noise
            rewarded = await flow.rewarding.rewards(group_id, inputs, partial(reward_group, *inputs))
        except NotReady:
            raise
        except Exception as error:  # noqa: BLE001  # counted and logged: what a policy wrote can end only its own group
            when_committed(partial(flow.rewarding.forget, group_id))
            await transitions.count(connection, flow.run_id, "groups_unrewarded")
            when_committed(partial(log.error, "group.unrewarded", group=group_id, exc_info=error))
            reason = f"its rewards could not be computed: {type(error).__name__}: {error}"
            await _concluded(connection, group, GroupState.DEAD, reason)
            return
        when_committed(partial(flow.rewarding.forget, group_id))
        for sentence in rewarded.failed:
            await transitions.count(connection, flow.run_id, "process_signals_failed")
            when_committed(partial(log.warning, "process_signal.failed", group=group_id, reason=sentence))
        await pool_groups.write_rewards(connection, flow.run_id, rewarded.rewards)
        if rewarded.silent and group.purpose is Purpose.TRAIN:
            state, reason, silent = GroupState.FILTERED, FilterReason.ZERO_SIGNAL, rewarded.silent.value
        await _measured(connection, flow, group)
    await _concluded(connection, group, state, reason, silent)


async def _measured(connection: AsyncConnection, flow: Flow, group: pool_groups.TerminalGroup) -> None:
    """Begin or conclude a measurement of the speed noise. An error of ours loses the measurement, never the group."""
    try:
        async with connection.begin_nested():
            await measure(connection, flow.run_id, flow.config, group)
            await conclude_measurement(connection, group)
    except Exception as error:  # counted and logged; what is not this group's fault is raised
        if passing(error):
            raise
        await transitions.count(connection, flow.run_id, "measurements_failed")
        when_committed(partial(log.error, "speed_noise.failed", group=group.group_id, exc_info=error))


async def give_up(
    connection: AsyncConnection, flow: Flow, rollout_id: int, before: RolloutState, epoch: int, reason: str
) -> None:
    """End a rollout that cannot be continued because our own code fails for it. Its group becomes dead without rewards, and its other rollouts are
    cancelled."""
    await transitions.count(connection, flow.run_id, "rollouts_given_up")
    if await leases.lose(connection, rollout_id, before, epoch, FailureClass.POISON, reason):
        group_id = await leases.group_of(connection, rollout_id)
        await leases.cancel_members(connection, [group_id], reason)
        await pool_groups.conclude(connection, group_id, GroupState.DEAD, reason)
        flow.signals.work.set()


async def _concluded(
    connection: AsyncConnection,
    group: pool_groups.TerminalGroup,
    state: GroupState,
    reason: str | None,
    detail: str | None = None,
) -> None:
    await pool_groups.conclude(connection, group.group_id, state, reason)
    members = [member.rollout_id for member in group.members]
    _say("group.concluded", group=group.group_id, rollouts=members, state=state, reason=reason, detail=detail)


def _say(event: str, **facts: object) -> None:
    """Log a line once the transaction is committed."""
    when_committed(partial(log.info, event, **facts))


def _wrong_version(pinned: int | None, member: pool_groups.GroupMember) -> bool:
    return pinned is not None and any(step.versions - {pinned} for step in member.steps)
