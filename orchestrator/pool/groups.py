"""Concluding groups: when every member is terminal, its rewards are written and the group becomes ready, scored or filtered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import (
    ROLLOUT_TERMINAL,
    FailureClass,
    GroupState,
    Purpose,
    RolloutState,
    Silence,
    SpeedBase,
)
from orchestrator.pool import transitions
from orchestrator.pool.rows import from_row, from_wide_row
from orchestrator.pool.steps import StepReading, readings
from orchestrator.pool.tables import attempts, groups, rewards, rollouts, tasks, verdicts
from orchestrator.pool.transitions import lock_run


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A terminal rollout with the inputs of its reward; `performance` is None without a verdict."""

    rollout_id: int
    member: int
    attempt: int
    state: RolloutState
    failure: FailureClass
    reason: str | None
    performance: float | None
    verdict_revision: int | None
    agent_s: float
    queued_s: float
    steps: Sequence[StepReading]
    judged: Mapping[str, float | Sequence[float]] | None = None  # the verdict's process scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalGroup:
    """A dispatched group, locked, whose members are all terminal."""

    group_id: int
    purpose: Purpose
    domain: str
    scaffold: str
    pinned_version: int | None
    settings: dict[str, Any]
    members: Sequence[GroupMember]


async def terminal_group(connection: AsyncConnection, run_id: int, group_id: int) -> TerminalGroup | None:
    """Lock the group row first, then read its members. None if one is unfinished or the group is no longer dispatched.

    The queue row is locked before that, so that the history of a run's queue is in commit order and can be replayed. Without the group's lock
    two last members that end at once would each see the other unfinished, and the group would hang.
    """
    await lock_run(connection, run_id)
    group = (
        await connection.execute(
            select(
                groups.c.state,
                groups.c.purpose,
                groups.c.domain,
                groups.c.scaffold,
                groups.c.pinned_version,
                tasks.c.settings,
            )
            .join(tasks, tasks.c.task_id == groups.c.task_id)
            .where(groups.c.group_id == group_id)
            .with_for_update(of=groups)
        )
    ).first()
    if group is None or group.state != GroupState.DISPATCHED:
        return None
    rows = await _members(connection, group_id)
    if any(RolloutState(row.state) not in ROLLOUT_TERMINAL for row in rows):
        return None
    verified = [(row.rollout_id, row.attempt) for row in rows if row.state == RolloutState.VERIFIED]
    recorded = await readings(connection, run_id, verified)
    members = [
        from_wide_row(
            GroupMember,
            row,
            state=RolloutState(row.state),
            failure=FailureClass(row.failure_class),
            performance=row.reward,
            agent_s=row.agent_s or 0.0,
            queued_s=row.queued_s or 0.0,
            steps=recorded.get(row.rollout_id, []),
            judged=row.process,
        )
        for row in rows
    ]
    return from_row(
        TerminalGroup,
        group,
        without=("state",),
        group_id=group_id,
        purpose=Purpose(group.purpose),
        members=members,
    )


async def _members(connection: AsyncConnection, group_id: int) -> Sequence[Row[Any]]:
    """The group's rollouts, each with its attempt's times and its newest verdict, if any."""
    newest = (
        select(verdicts.c.rollout_id, func.max(verdicts.c.revision).label("revision"))
        .group_by(verdicts.c.rollout_id)
        .join(rollouts, rollouts.c.rollout_id == verdicts.c.rollout_id)
        .where(rollouts.c.group_id == group_id)
        .subquery()
    )
    result = await connection.execute(
        select(
            rollouts,
            attempts.c.agent_s,
            attempts.c.queued_s,
            verdicts.c.reward,
            verdicts.c.process,
            verdicts.c.revision.label("verdict_revision"),
        )
        .join(
            attempts,
            (attempts.c.rollout_id == rollouts.c.rollout_id) & (attempts.c.attempt == rollouts.c.attempt),
            isouter=True,
        )
        .join(newest, newest.c.rollout_id == rollouts.c.rollout_id, isouter=True)
        .join(
            verdicts,
            (verdicts.c.rollout_id == newest.c.rollout_id) & (verdicts.c.revision == newest.c.revision),
            isouter=True,
        )
        .where(rollouts.c.group_id == group_id)
        .order_by(rollouts.c.member)
    )
    return result.all()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReward:
    """One revision of a rollout's reward with every component. baseline, divisor, advantage: None if nothing is compared.

    `sd_log_t`, `speed_noise` and `silent` belong to the group. `silent`: why it gives no training signal.
    """

    rollout_id: int
    attempt: int
    verdict_revision: int
    performance: float
    speed: float
    process: float
    alpha: float
    beta: float
    total: float
    t_agent: float
    t_base: float | None
    t_base_origin: SpeedBase | None
    process_by_signal: Mapping[str, float]
    sd_log_t: float | None
    speed_noise: float | None
    silent: Silence | None
    baseline: float | None
    divisor: float | None
    advantage: float | None
    per_step: Sequence[Mapping[str, Any]]


async def write_rewards(connection: AsyncConnection, run_id: int, written: Sequence[NewReward]) -> None:
    """Append the next revision of each rollout's reward."""
    for reward in written:
        revision = func.coalesce(
            select(func.max(rewards.c.revision) + 1)
            .where(rewards.c.rollout_id == reward.rollout_id)
            .scalar_subquery(),
            1,
        )
        await connection.execute(
            insert(rewards).values(
                run_id=run_id,
                rollout_id=reward.rollout_id,
                revision=revision,
                verdict_revision=reward.verdict_revision,
                attempt=reward.attempt,
                performance=reward.performance,
                speed=reward.speed,
                process=reward.process,
                alpha=reward.alpha,
                beta=reward.beta,
                total=reward.total,
                t_agent=reward.t_agent,
                t_base=reward.t_base,
                t_base_origin=reward.t_base_origin,
                process_by_signal=dict(reward.process_by_signal),
                sd_log_t=reward.sd_log_t,
                speed_noise=reward.speed_noise,
                silent=reward.silent,
                baseline=reward.baseline,
                divisor=reward.divisor,
                advantage=reward.advantage,
                per_step=list(reward.per_step),
            )
        )


async def conclude(connection: AsyncConnection, group_id: int, state: GroupState, reason: str | None) -> bool:
    """DISPATCHED → ready, scored, filtered or dead; False when the race was lost."""
    return await transitions.move_group(connection, group_id, GroupState.DISPATCHED, state, reason=reason)
