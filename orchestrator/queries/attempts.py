"""Whole recorded attempts for exports: with their steps, tokens, messages, tools, rewards and batches, page by page in the order of their
keys.

A page is a few short statements, not one cursor over everything: a snapshot held for hours would slow down the run's claims.
All data is as of the bound, except for values without a time in their row: a group's state and reason, whether a rewind voided a batch's
item, marks of steps. These are live: if they change during an export, the parts already written keep the older values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Text, and_, exists, func, literal_column, select, text, true, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import LateralFromClause

from orchestrator.contracts.marks import Finish
from orchestrator.contracts.states import (
    BatchState,
    FailureClass,
    GroupState,
    Purpose,
    RolloutState,
    Silence,
    SpeedBase,
)
from orchestrator.pool.columns import among_pairs
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.steps import StoredStep, trajectories
from orchestrator.pool.tables import (
    attempts,
    batch_items,
    batch_rollouts,
    batches,
    groups,
    messages,
    rewards,
    rollouts,
    sampling,
    step_marks,
    steps,
    tasks,
    tool_calls,
    verdicts,
)
from orchestrator.queries.attempt_filters import AttemptFilters, Bound, conditions, has
from orchestrator.queries.call_times import CallSpan, spans
from orchestrator.queries.instructions import instruction_of
from orchestrator.queries.latest_reward import counts

PAGE = 32  # attempts in memory at a time

Key = tuple[int, int]
"""(rollout_id, attempt)."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AttemptStep:
    """One completion. `stored` has its tokens; `weight` is its train weight, 0 or 1; `span`: start and end of its call, as far as known."""

    stored: StoredStep
    v_lo: int
    v_hi: int
    finish: Finish
    sampling: Mapping[str, Any]
    appended: Sequence[Mapping[str, Any]]
    reply: Mapping[str, Any]
    marks: tuple[str, ...]
    weight: int
    advantage: float | None
    branch_reason: str | None
    t_queue: float | None  # seconds, like the three below
    t_first: float | None
    t_gen: float | None
    t_gap: float | None
    span: CallSpan

    @property
    def idx(self) -> int:
        return self.stored.idx


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecution:
    """One timed execution of a tool. Times are seconds since the attempt started."""

    idx: int  # the step whose reply called it
    call: int  # number of the call in that reply, from 0
    name: str
    start_s: float | None
    end_s: float | None
    exit_code: int | None  # of the tool's command, where it has one
    bytes: int | None  # size of its output


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReward:
    """One revision of a reward: total = performance + beta * speed + alpha * process."""

    revision: int
    performance: float  # the verifier's reward, 0 to 1
    speed: float  # performance * h(t_agent / t_base), h(x) = 1 / (1 + x)
    process: float  # sum of the weighted process signals
    alpha: float  # 1, or less where process would exceed its cap
    beta: float  # weight of speed
    total: float
    baseline: float | None  # of its group, subtracted from the returns; None: no advantage was computed
    divisor: float | None  # of the difference; 1 unless advantages are normalised
    advantage: float | None  # of the first step; None where the group gives no training signal
    t_agent: float | None  # seconds of the agent, without the platform's queues
    t_base: float | None  # seconds that speed is measured against
    t_base_origin: SpeedBase | None
    process_by_signal: Mapping[str, float] | None  # what each process signal added to the reward
    sd_log_t: float | None  # standard deviation of ln(t_agent) over the group's members that succeeded
    speed_noise: float | None  # the same over replays of one rollout, which sd_log_t was compared with
    silent: Silence | None  # why the group gives no training signal; None: it trains, or is not for training


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedVerdict:
    """The verifier's result."""

    revision: int  # grows when the rollout is scored again
    reward: float  # 0 to 1
    components: Mapping[str, float] | None  # the named numbers of the task's reward.json
    tests: Sequence[Mapping[str, Any]]  # {name, passed, message}
    exit_code: int | None  # of the test script
    log: str
    seconds: float | None  # of verification
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBatch:
    """The committed batch that trained the attempt, with the values pinned then; `version`: the policy version that the batch published."""

    batch_no: int
    version: int | None
    reward_revision: int
    baseline: float
    divisor: float
    advantage: float  # of the first step


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedAttempt:
    """One infrastructure try of a rollout; `counts`: it is the verified attempt, or the last one."""

    run: str
    rollout_id: int
    attempt: int
    counts: bool
    group_id: int
    submission: str
    task: str
    instruction: str
    domain: str
    purpose: Purpose
    label: str | None
    scaffold: str
    scaffold_version: str | None
    member: int
    seed: int
    seq: int | None
    stage: int | None
    pinned_version: int | None
    group_state: GroupState
    group_reason: str | None
    rollout_state: RolloutState
    failure_class: FailureClass | None
    reason: str | None
    answer: str | None
    agent_s: float | None
    queued_s: float | None
    started: datetime
    ended: datetime
    reward: RecordedReward | None
    verdict: RecordedVerdict | None
    batch: TrainedBatch | None
    steps: Sequence[AttemptStep]
    tools: Sequence[ToolExecution]

    @property
    def key(self) -> Key:
        return self.rollout_id, self.attempt

    @property
    def name(self) -> str:
        """`rollout-12-attempt-1`: unique in a run."""
        return f"rollout-{self.rollout_id}-attempt-{self.attempt}"

    @property
    def versions(self) -> tuple[int, int] | None:
        """The oldest and the newest policy version of its tokens; None without steps."""
        if not self.steps:
            return None
        return min(step.v_lo for step in self.steps), max(step.v_hi for step in self.steps)


_JOINED = attempts.join(rollouts, rollouts.c.rollout_id == attempts.c.rollout_id).join(
    groups, groups.c.group_id == rollouts.c.group_id
)


async def count(connection: AsyncConnection, run: StoredRun, wanted: AttemptFilters, bound: Bound) -> int:
    """Number of attempts that match, for a progress bar: one pass over the run's attempts."""
    query = select(func.count()).select_from(_JOINED).where(conditions(run.run_id, wanted, bound))
    return int(await connection.scalar(query) or 0)


async def page(
    connection: AsyncConnection,
    run: StoredRun,
    wanted: AttemptFilters,
    bound: Bound,
    after: Key | None,
    limit: int = PAGE,
) -> list[RecordedAttempt]:
    """The next attempts after `after`, with all of their steps. Raises ValueError if a step's tree is damaged."""
    query = _statement(run.run_id, wanted, bound).limit(limit)
    if after is not None:
        query = query.where(tuple_(attempts.c.rollout_id, attempts.c.attempt) > after)
    rows = (await connection.execute(query)).all()
    keys = [(row.rollout_id, row.attempt) for row in rows]
    tools = await _tools(connection, run.run_id, keys)
    found = await _steps(connection, run.run_id, dict(zip(keys, rows, strict=True)), tools)
    return [
        _attempt(run.name, row, found.get(key, []), tools.get(key, []))
        for key, row in zip(keys, rows, strict=True)
    ]


def _statement(run_id: int, wanted: AttemptFilters, bound: Bound) -> Select[Any]:
    """The attempts that match, by their keys, each with its group, task, reward, verdict and batch."""
    reward = _reward_that_counts(bound)
    verdict = _newest_verdict(bound)
    trained = _trained(bound)
    return (
        select(
            attempts,
            *(rollouts.c[name] for name in ("group_id", "member", "seed")),
            (attempts.c.attempt == rollouts.c.attempt).label("counts"),
            rollouts.c.state.label("rollout_state"),
            *(
                groups.c[name]
                for name in ("submission", "domain", "purpose", "label", "seq", "stage", "pinned_version")
            ),
            groups.c.scaffold.label("requested_scaffold"),
            groups.c.state.label("group_state"),
            groups.c.reason.label("group_reason"),
            tasks.c.name.label("task"),
            literal_column(instruction_of("tasks"), Text).label("instruction"),
            *_all("w", reward),
            *_all("v", verdict),
            *_all("b", trained),
        )
        .select_from(
            _JOINED.join(tasks, tasks.c.task_id == groups.c.task_id)
            .outerjoin(reward, true())
            .outerjoin(verdict, true())
            .outerjoin(trained, true())
        )
        .where(conditions(run_id, wanted, bound))
        .order_by(attempts.c.rollout_id, attempts.c.attempt)
    )


def _reward_that_counts(bound: Bound) -> LateralFromClause:
    return (
        select(rewards)
        .where(
            rewards.c.rollout_id == attempts.c.rollout_id,
            rewards.c.attempt == attempts.c.attempt,
            rewards.c.at <= bound.at,
            text(counts("rewards", "rollouts")),
        )
        .order_by(rewards.c.revision.desc())
        .limit(1)
        .lateral("w")
    )


def _newest_verdict(bound: Bound) -> LateralFromClause:
    """The newest verdict, on which the reward builds. A rollout that a rescore lost has none that holds."""
    return (
        select(verdicts)
        .where(
            verdicts.c.rollout_id == attempts.c.rollout_id,
            verdicts.c.attempt == attempts.c.attempt,
            verdicts.c.at <= bound.at,
            rollouts.c.state == RolloutState.VERIFIED,
        )
        .order_by(verdicts.c.revision.desc())
        .limit(1)
        .lateral("v")
    )


def _trained(bound: Bound) -> LateralFromClause:
    """The committed batch that trained the attempt. Joined by the group: at most one of its batches is not voided."""
    return (
        select(batches.c.batch_no, batches.c.version, *_PINNED)
        .join(batch_items, (batch_items.c.batch_id == batches.c.batch_id) & ~batch_items.c.voided)
        .join(batch_rollouts, batch_rollouts.c.batch_id == batches.c.batch_id)
        .where(
            batch_items.c.group_id == groups.c.group_id,
            batch_rollouts.c.rollout_id == attempts.c.rollout_id,
            batch_rollouts.c.attempt == attempts.c.attempt,
            batches.c.state == BatchState.COMMITTED,
            batches.c.committed <= bound.at,
        )
        .limit(1)
        .lateral("b")
    )


async def has_domain(connection: AsyncConnection, run_id: int, domain: str) -> bool:
    """Whether the run has a group of that domain."""
    found = exists().where(groups.c.run_id == run_id, groups.c.domain == domain)
    return bool(await connection.scalar(select(found)))


async def domains(connection: AsyncConnection, run_id: int) -> list[str]:
    """The domains of the run's groups, sorted."""
    found = await connection.scalars(select(groups.c.domain).where(groups.c.run_id == run_id).distinct())
    return sorted(found.all())


async def group_sections(
    connection: AsyncConnection, run_id: int, columns: Sequence[str], wanted: AttemptFilters
) -> list[dict[str, Any]]:
    """Every combination of the values of `columns` among the run's groups that `wanted` allows, sorted; "" for a group without a value."""
    distinct = select(*(groups.c[name] for name in columns)).where(groups.c.run_id == run_id).distinct()
    for name in columns:
        if (value := getattr(wanted, name)) is not None:
            distinct = distinct.where(has(groups.c[name], value))
    rows = (await connection.execute(distinct)).all()
    return [
        dict(zip(columns, values, strict=True))
        for values in sorted([value or "" for value in row] for row in rows)
    ]


# Columns of a taken group.
_PINNED = [batch_rollouts.c[name] for name in ("reward_revision", "baseline", "divisor", "advantage")]


_STEP_COLUMNS = (
    "rollout_id", "attempt", "idx", "v_lo", "v_hi", "finish", "branch_reason", "t_queue", "t_first", "t_gen", "t_gap", "at", "ended",
)  # fmt: skip


def _all(prefix: str, table: Any) -> list[Any]:
    return [column.label(f"{prefix}_{column.name}") for column in table.c]


def _weights(row: Any) -> dict[int, tuple[int, float | None]]:
    """idx → (train weight, advantage), as written by the rewarder."""
    return {step["idx"]: (int(step["weight"]), step["advantage"]) for step in row.w_per_step or []}


def _tools_started(started: float, tools: Sequence[ToolExecution]) -> dict[int, float]:
    """idx → start of the first tool of that step's reply, unix seconds."""
    found: dict[int, float] = {}
    for tool in tools:
        if tool.start_s is not None:
            found[tool.idx] = min(found.get(tool.idx, float("inf")), started + tool.start_s)
    return found


async def _steps(
    connection: AsyncConnection,
    run_id: int,
    of: Mapping[Key, Any],
    tools: Mapping[Key, Sequence[ToolExecution]],
) -> dict[Key, list[AttemptStep]]:
    keys = list(of)
    if not keys:
        return {}
    stored: dict[tuple[int, int, int], StoredStep] = {
        (step.rollout_id, step.attempt, step.idx): step
        for of_rollout in (await trajectories(connection, run_id, keys)).values()
        for step in of_rollout
    }
    marks = await _marks(connection, run_id, keys)
    rows_of = await _step_rows(connection, run_id, keys)
    result: dict[Key, list[AttemptStep]] = {}
    for key, rows in rows_of.items():
        known = _weights(of[key])
        tools_started = _tools_started(of[key].started.timestamp(), tools.get(key, ()))
        for row, span in zip(rows, spans(rows, tools_started), strict=True):
            step_key = (*key, row.idx)
            weight, advantage = known.get(row.idx, (0 if step_key in marks else 1, None))
            result.setdefault(key, []).append(
                from_wide_row(
                    AttemptStep,
                    row,
                    stored=stored[step_key],
                    sampling=row.params,
                    appended=row.appended or [],
                    reply=row.reply or {},
                    marks=tuple(marks.get(step_key, ())),
                    weight=weight,
                    advantage=advantage,
                    span=span,
                )
            )
    return result


async def _marks(
    connection: AsyncConnection, run_id: int, keys: Sequence[Key]
) -> dict[tuple[int, int, int], list[str]]:
    """(rollout_id, attempt, idx) → the reasons of the step's marks, sorted."""
    marks: dict[tuple[int, int, int], list[str]] = {}
    for row in await connection.execute(
        select(step_marks)
        .where(
            step_marks.c.run_id == run_id, among_pairs(step_marks.c.rollout_id, step_marks.c.attempt, keys)
        )
        .order_by(step_marks.c.reason)
    ):
        marks.setdefault((row.rollout_id, row.attempt, row.idx), []).append(row.reason)
    return marks


async def _step_rows(connection: AsyncConnection, run_id: int, keys: Sequence[Key]) -> dict[Key, list[Any]]:
    query = (
        select(
            *(steps.c[name] for name in _STEP_COLUMNS),
            sampling.c.params,
            messages.c.appended,
            messages.c.reply,
        )
        .join(sampling, sampling.c.sampling_id == steps.c.sampling_id)
        .outerjoin(
            messages,
            and_(*(messages.c[name] == steps.c[name] for name in ("run_id", "rollout_id", "attempt", "idx"))),
        )
        .where(steps.c.run_id == run_id, among_pairs(steps.c.rollout_id, steps.c.attempt, keys))
        .order_by(steps.c.rollout_id, steps.c.attempt, steps.c.idx)
    )
    read: dict[Key, list[Any]] = {}
    for row in await connection.execute(query):
        read.setdefault((row.rollout_id, row.attempt), []).append(row)
    return read


async def _tools(
    connection: AsyncConnection, run_id: int, keys: Sequence[Key]
) -> dict[Key, list[ToolExecution]]:
    if not keys:
        return {}
    query = (
        select(tool_calls)
        .where(
            tool_calls.c.run_id == run_id, among_pairs(tool_calls.c.rollout_id, tool_calls.c.attempt, keys)
        )
        .order_by(tool_calls.c.idx, tool_calls.c.call)
    )
    result: dict[Key, list[ToolExecution]] = {}
    for row in await connection.execute(query):
        found = from_wide_row(ToolExecution, row)
        result.setdefault((row.rollout_id, row.attempt), []).append(found)
    return result


def _attempt(
    run: str, row: Any, steps: Sequence[AttemptStep], tools: Sequence[ToolExecution]
) -> RecordedAttempt:
    reward = verdict = batch = None
    if row.w_revision is not None:
        reward = from_wide_row(RecordedReward, row, prefix="w_")
    if row.v_revision is not None:
        verdict = from_wide_row(
            RecordedVerdict, row, prefix="v_", log=row.v_log or "", seconds=row.v_verify_s
        )
    if row.b_batch_no is not None:
        batch = from_wide_row(TrainedBatch, row, prefix="b_")
    return from_wide_row(
        RecordedAttempt,
        row,
        run=run,
        instruction=row.instruction or "",
        scaffold=row.scaffold or row.requested_scaffold,
        reward=reward,
        verdict=verdict,
        batch=batch,
        steps=steps,
        tools=tools,
    )
