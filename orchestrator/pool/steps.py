"""Steps as they are stored: reading trajectories back, with or without their tokens. `pool.ingest` writes them.

full = state + action; state = parent.full[:keep_len] + delta; a root's parent is its prompt. It takes one index scan. A step is returned as a
branch of its parent, so shared tokens are held once, and a prompt once for all its rollouts. The SQL functions `step_full` and `step_ids` fold.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Row, case, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.ids import Ids, Logprobs, ids_from_bytes, logprobs_from_bytes
from orchestrator.contracts.limits import MAX_TOOL_CALLS
from orchestrator.contracts.marks import MAIN_AGENT, Finish, MarkReason, ParseStatus
from orchestrator.contracts.spans import VersionSpan, from_flat, versions_in_flat
from orchestrator.contracts.states import StepKind
from orchestrator.pool.columns import among_pairs
from orchestrator.pool.routes import Key as StepKey
from orchestrator.pool.routes import RecordedRoutes, recorded_routes, routed_branch
from orchestrator.pool.rows import from_wide_row, member
from orchestrator.pool.tables import messages, prompts, sampling, step_marks, steps, tool_calls
from orchestrator.rewards.actions import ToolResult
from orchestrator.trajectory.branch import Branch

SHOWN_TOOLS = "tools"
"""The role under which the messages of a new rendering begin with the tools that its prompt shows."""


UNMARKED: frozenset[str] = frozenset()
_NOT_ALWAYS = frozenset({MarkReason.CUT_OFF})  # with this mark alone, a step's advantage decides


def kept_out(marks: Set[str]) -> bool:
    """Whether a step with these marks has train weight 0, whatever its advantage."""
    return bool(marks - _NOT_ALWAYS)


def canonical(params: dict[str, Any]) -> bytes:
    """Canonical JSON of sampling parameters: the bytes that row_sha covers."""
    return msgspec.json.encode(params, order="sorted")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoredStep:
    """One step, a branch of its parent: tokens has full_len ids; logprobs: float32[full_len - state_len]; `marks`: their reasons."""

    rollout_id: int
    attempt: int
    idx: int
    kind: StepKind
    parent: int | None
    keep_len: int
    state_len: int
    tokens: Branch
    logprobs: Logprobs
    spans: tuple[VersionSpan, ...]  # over the action
    agent: str
    parse: ParseStatus
    marks: frozenset[str]
    temperature: float
    reply: dict[str, Any]
    finish: Finish

    @property
    def kept_out(self) -> bool:
        """Whether its train weight is 0, whatever its advantage."""
        return kept_out(self.marks)

    @property
    def full(self) -> Ids:
        """int32[full_len]: state and action, built again at every call."""
        return self.tokens.full

    @property
    def action(self) -> Ids:
        return self.tokens.tail(self.state_len)


async def trajectories(
    connection: AsyncConnection,
    run_id: int,
    attempts_of: Sequence[tuple[int, int]],
    *,
    routes: bool = False,
) -> dict[int, list[StoredStep]]:
    """The steps of (rollout, attempt) pairs by rollout, in idx order: one index scan, nothing expanded.

    With `routes` their tokens carry the recorded experts, if any: a second scan.
    Raises ValueError if a step keeps more of its parent, or of its prompt, than there is.
    """
    return folded(await stored_rows(connection, run_id, attempts_of, routes=routes))


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """The rows of trajectories, as they were read."""

    steps: Sequence[Row[Any]]
    marks: Mapping[StepKey, frozenset[str]]
    routes: Mapping[StepKey, RecordedRoutes]


async def stored_rows(
    connection: AsyncConnection,
    run_id: int,
    attempts_of: Sequence[tuple[int, int]],
    *,
    routes: bool = False,
) -> StoredRows:
    """The queries of `trajectories`. `folded` does the rest, which takes seconds for a large batch and needs no transaction."""
    if not attempts_of:
        return StoredRows([], {}, {})
    marks = await _marks(connection, run_id, attempts_of)
    rows = await _rows(connection, run_id, attempts_of)
    routed = await recorded_routes(connection, run_id, attempts_of) if routes else {}
    return StoredRows(rows, marks, routed)


def folded(rows: StoredRows) -> dict[int, list[StoredStep]]:
    """The steps of `rows` by rollout, in idx order. Raises ValueError like `trajectories`."""
    branches = _branches(rows.steps, rows.routes)
    result: dict[int, list[StoredStep]] = {}
    for row in rows.steps:
        key = (row.rollout_id, row.attempt, row.idx)
        result.setdefault(row.rollout_id, []).append(
            from_wide_row(
                StoredStep,
                row,
                kind=StepKind(row.kind),
                parent=row.parent_idx,
                tokens=branches[key],
                logprobs=logprobs_from_bytes(row.logprobs),
                spans=from_flat(row.spans),
                marks=rows.marks.get(key, UNMARKED),
                temperature=float(row.params.get("temperature", 1.0)),
                reply=row.reply or {},
            )
        )
    return result


async def _rows(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> Sequence[Row[Any]]:
    """The rows of the steps, in order, with the prompt of each root, the sampling and the reply."""
    chosen = among_pairs(steps.c.rollout_id, steps.c.attempt, attempts_of)
    query = (
        select(steps, prompts.c.ids.label("prompt_ids"), sampling.c.params, messages.c.reply)
        .join(
            prompts,
            (prompts.c.run_id == steps.c.run_id) & (prompts.c.sha == steps.c.prompt_sha),
            isouter=True,
        )
        .join(sampling, sampling.c.sampling_id == steps.c.sampling_id)
        .join(messages, _READING, isouter=True)
        .where(steps.c.run_id == run_id, chosen)
        .order_by(steps.c.rollout_id, steps.c.attempt, steps.c.idx)
    )
    return (await connection.execute(query)).all()


def _branches(rows: Sequence[Row[Any]], routed: Mapping[StepKey, RecordedRoutes]) -> dict[StepKey, Branch]:
    """The tokens of each step, which share those of its parent. Roots with the same prompt share it, across rollouts."""
    template = next((recorded.rows for recorded in routed.values()), None)
    branches: dict[StepKey, Branch] = {}
    roots: dict[bytes | None, Branch] = {}
    for row in rows:
        if row.parent_idx is not None:
            parent = branches.get((row.rollout_id, row.attempt, row.parent_idx))
            if parent is None:
                raise ValueError(
                    f"step {row.idx} of rollout {row.rollout_id}, attempt {row.attempt} continues step {row.parent_idx}, "
                    "which is not stored before it"
                )
            base = parent
        else:
            if row.prompt_sha not in roots:
                roots[row.prompt_sha] = Branch(own=ids_from_bytes(row.prompt_ids or b""))
            base = roots[row.prompt_sha]
        own = np.concatenate([ids_from_bytes(row.delta), ids_from_bytes(row.action)])
        key = (row.rollout_id, row.attempt, row.idx)
        branches[key] = (
            Branch(own=own, parent=base, keep_len=row.keep_len)
            if template is None
            else routed_branch(own, base, row.keep_len, routed.get(key), template)
        )
    return branches


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReading:
    """The data of a step for rewards: everything but its tokens. `marks`: their reasons; `versions`: the policy versions that generated it;
    `tools`: in call order; `unrecorded`: the attempt made more tool calls than are recorded, and this step may lack some. `shows_tools`: False if
    its prompt shows none."""

    idx: int
    parse: ParseStatus
    reply: dict[str, Any]
    marks: frozenset[str]
    versions: frozenset[int]
    agent: str = MAIN_AGENT
    tools: tuple[ToolResult, ...] = ()
    unrecorded: bool = False
    shows_tools: bool = True


async def readings(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> dict[int, list[StepReading]]:
    """Like `trajectories`, without any token column: contexts of a group can be hundreds of megabytes."""
    if not attempts_of:
        return {}
    marks = await _marks(connection, run_id, attempts_of)
    tools = await _tools(connection, run_id, attempts_of)
    recorded = last_recorded(tools)
    rows = await connection.execute(
        select(
            steps.c.rollout_id,
            steps.c.attempt,
            steps.c.idx,
            steps.c.parse,
            steps.c.spans,
            steps.c.agent,
            steps.c.kind,
            steps.c.parent_idx,
            messages.c.reply,
            case(
                (  # a continued step has its parent's; PostgreSQL need not read its messages
                    steps.c.kind != StepKind.CONTINUES,
                    messages.c.appended[0]["role"].astext != SHOWN_TOOLS,
                ),
            ).label("without_tools"),
        )
        .join(messages, _READING, isouter=True)
        .where(steps.c.run_id == run_id, among_pairs(steps.c.rollout_id, steps.c.attempt, attempts_of))
        .order_by(steps.c.rollout_id, steps.c.attempt, steps.c.idx)
    )
    result: dict[int, list[StepReading]] = {}
    shows: dict[StepKey, bool] = {}
    for row in rows:
        key = (row.rollout_id, row.attempt, row.idx)
        parent = (row.rollout_id, row.attempt, row.parent_idx)
        # A step that continues has its parent's tools; of a very large request nothing is recorded.
        shows[key] = shows.get(parent, True) if row.kind == StepKind.CONTINUES else not row.without_tools
        versions = versions_in_flat(row.spans)
        result.setdefault(row.rollout_id, []).append(
            StepReading(
                idx=row.idx,
                parse=member(ParseStatus, row.parse),
                reply=row.reply or {},
                marks=marks.get(key, UNMARKED),
                versions=versions,
                agent=row.agent,
                tools=tuple(tools.get(key, ())),
                unrecorded=row.idx >= recorded.get(key[:2], row.idx + 1),
                shows_tools=shows[key],
            )
        )
    return result


def last_recorded(
    tools: Mapping[tuple[int, int, int], Sequence[ToolResult]],
) -> dict[tuple[int, int], int]:
    """(rollout, attempt) -> its last step with results, for the attempts that have as many as are recorded. `tools`: by rollout, attempt and step."""
    calls: Counter[tuple[int, int]] = Counter()
    last: dict[tuple[int, int], int] = {}
    for (rollout, attempt, idx), results in tools.items():
        calls[rollout, attempt] += len(results)
        last[rollout, attempt] = max(idx, last.get((rollout, attempt), 0))
    return {key: last[key] for key, number in calls.items() if number >= MAX_TOOL_CALLS}


async def _tools(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> dict[tuple[int, int, int], list[ToolResult]]:
    rows = await connection.execute(
        select(tool_calls)
        .where(
            tool_calls.c.run_id == run_id,
            among_pairs(tool_calls.c.rollout_id, tool_calls.c.attempt, attempts_of),
        )
        .order_by(tool_calls.c.idx, tool_calls.c.call)
    )
    found: dict[tuple[int, int, int], list[ToolResult]] = {}
    for row in rows:
        timed = row.start_s is not None and row.end_s is not None
        result = ToolResult(
            name=row.name,
            exit_code=row.exit_code,
            bytes=row.bytes,
            seconds=row.end_s - row.start_s if timed else None,
        )
        found.setdefault((row.rollout_id, row.attempt, row.idx), []).append(result)
    return found


_READING = (
    (messages.c.run_id == steps.c.run_id)
    & (messages.c.rollout_id == steps.c.rollout_id)
    & (messages.c.attempt == steps.c.attempt)
    & (messages.c.idx == steps.c.idx)
)


async def _marks(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> dict[StepKey, frozenset[str]]:
    """The reasons of the steps that have marks."""
    rows = await connection.execute(
        select(step_marks.c.rollout_id, step_marks.c.attempt, step_marks.c.idx, step_marks.c.reason).where(
            step_marks.c.run_id == run_id,
            among_pairs(step_marks.c.rollout_id, step_marks.c.attempt, attempts_of),
        )
    )
    found: dict[StepKey, frozenset[str]] = {}
    for row in rows:
        key = (row.rollout_id, row.attempt, row.idx)
        found[key] = found.get(key, UNMARKED) | {row.reason}
    return found
