"""The end of a group: once each of its rollouts is terminal, it gets its rewards and its last state, in one transaction."""

from collections.abc import Collection
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import FailureClass, FilterReason, GroupState, Purpose
from orchestrator.pool import groups as pool_groups
from orchestrator.pool import speed_noise, transitions
from orchestrator.pool.transact import NotReady, passing, when_committed
from orchestrator.rewards.process import plugin_signals
from orchestrator.rewards.settings import RewardSettings
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.reward import RewardedGroup, reward_group
from orchestrator.roles.reward_process import reward_group_apart
from orchestrator.roles.speed_noise import conclude_measurement, measure
from orchestrator.runtime.log import get
from orchestrator.scheduling.completion import Member, conclude

log = get(__name__)

HOPELESS = frozenset({FailureClass.POISON, FailureClass.VERIFIER_FAILURE})
"""Failures that lose a member for good. If all members of a group fail like this, the group is dead: its task or its tests need a fix."""


async def conclude_group(connection: AsyncConnection, context: OrchestratorContext, group_id: int) -> None:
    """If every member is terminal: write the rewards and make the group ready, scored, filtered or dead. Raises NotReady, to be repeated,
    while the rewards are computed."""
    group = await pool_groups.terminal_group(connection, context.run_id, group_id)
    if group is None:  # its rewards stay: a verdict that is held may need them
        return
    context.signals.work.set()
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
    trains_timeouts = context.config.rollout.train_timeouts or group.purpose is not Purpose.TRAIN
    decided = conclude(members, zero_signal=False, purpose=group.purpose, train_timeouts=trains_timeouts)
    state, reason = decided.state, decided.reason
    if state in (GroupState.READY, GroupState.SCORED):
        rewarded = await _rewarded(connection, context, group, decided.members)
        if rewarded is None:
            return
        await pool_groups.write_rewards(connection, context.run_id, rewarded.rewards)
        if rewarded.silent and group.purpose is Purpose.TRAIN:
            state, reason, silent = GroupState.FILTERED, FilterReason.ZERO_SIGNAL, rewarded.silent.value
        await _measured(connection, context, group)
    await _concluded(connection, group, state, reason, silent)


async def _rewarded(
    connection: AsyncConnection,
    context: OrchestratorContext,
    group: pool_groups.TerminalGroup,
    kept: Collection[int],
) -> RewardedGroup | None:
    """The rewards of the kept members. None: they cannot be computed, and the group is dead now."""
    noise = await speed_noise.newest(connection, context.run_id, group.scaffold)
    try:
        settings = RewardSettings.of(context.config.reward)
        inputs = group, kept, settings, noise
        compute = reward_group_apart if plugin_signals(settings) else reward_group
        rewarded = await context.reward_threads.rewards(group.group_id, inputs, partial(compute, *inputs))
    except NotReady:
        raise
    except Exception as error:  # noqa: BLE001  # counted and logged: what a policy wrote can end only its own group
        when_committed(partial(context.reward_threads.forget, group.group_id))
        await transitions.count(connection, context.run_id, "groups_unrewarded")
        when_committed(partial(log.error, "group.unrewarded", group=group.group_id, exc_info=error))
        reason = f"its rewards could not be computed: {type(error).__name__}: {error}"
        await _concluded(connection, group, GroupState.DEAD, reason)
        return None
    when_committed(partial(context.reward_threads.forget, group.group_id))
    for sentence in rewarded.failed:
        await transitions.count(connection, context.run_id, "process_signals_failed")
        when_committed(partial(log.warning, "process_signal.failed", group=group.group_id, reason=sentence))
    return rewarded


async def _measured(
    connection: AsyncConnection, context: OrchestratorContext, group: pool_groups.TerminalGroup
) -> None:
    """Begin or conclude a measurement of the speed noise. An error of ours loses the measurement, never the group."""
    try:
        async with connection.begin_nested():
            await measure(connection, context.run_id, context.config, group)
            await conclude_measurement(connection, group)
    except Exception as error:  # counted and logged; what is not this group's fault is raised
        if passing(error):
            raise
        await transitions.count(connection, context.run_id, "measurements_failed")
        when_committed(partial(log.error, "speed_noise.failed", group=group.group_id, exc_info=error))


async def _concluded(
    connection: AsyncConnection,
    group: pool_groups.TerminalGroup,
    state: GroupState,
    reason: str | None,
    detail: str | None = None,
) -> None:
    await pool_groups.conclude(connection, group.group_id, state, reason)
    members = [member.rollout_id for member in group.members]
    line = partial(log.info, "group.concluded", group=group.group_id, rollouts=members, state=state)
    when_committed(partial(line, reason=reason, detail=detail))


def _wrong_version(pinned: int | None, member: pool_groups.GroupMember) -> bool:
    return pinned is not None and any(step.versions - {pinned} for step in member.steps)
