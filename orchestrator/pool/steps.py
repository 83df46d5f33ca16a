"""Steps as they are stored: reading trajectories back, with or without their tokens. `pool.ingest` writes them.

full = state + action; state = parent.full[:keep_len] + delta; a root's parent is its prompt. One index scan; a step comes back as a branch of
its parent, so tokens that steps share are held once, and a prompt once for all its rollouts. The SQL functions `step_full` and `step_ids` fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.branch import Branch
from orchestrator.contracts.ids import Ids, Logprobs, ids_from_bytes, logprobs_from_bytes
from orchestrator.contracts.states import StepKind
from orchestrator.pool.routes import recorded_routes, routed_branch
from orchestrator.pool.tables import messages, prompts, sampling, step_marks, steps


def canonical(params: dict[str, Any]) -> bytes:
    """Canonical JSON of sampling parameters: the bytes that row_sha covers."""
    return msgspec.json.encode(params, order="sorted")


@dataclass(frozen=True, slots=True, eq=False)
class StoredStep:
    """One step, a branch of its parent: tokens has full_len ids; logprobs: float32[full_len - state_len]."""

    rollout_id: int
    attempt: int
    idx: int
    kind: StepKind
    parent: int | None
    keep_len: int
    state_len: int
    tokens: Branch
    logprobs: Logprobs
    spans: tuple[tuple[int, int, int], ...]  # (version, start, end) over the action
    agent: str
    parse: str
    marked: bool
    temperature: float
    reply: dict[str, Any]
    finish: str  # stop | length | abort

    @property
    def full(self) -> Ids:
        """int32[full_len]: state and action, put together anew at every call."""
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

    With `routes` their tokens carry the experts that they were sent to, where that is recorded: a second scan.
    Raises ValueError when a step keeps more of its parent, or of its prompt, than there is.
    """
    if not attempts_of:
        return {}
    chosen = tuple_(steps.c.rollout_id, steps.c.attempt).in_(attempts_of)
    marked = await _marked(connection, run_id, attempts_of)
    rows = (
        await connection.execute(
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
    ).all()
    routed = await recorded_routes(connection, run_id, attempts_of) if routes else {}
    like = next((told.rows for told in routed.values()), None)
    known: dict[tuple[int, int, int], Branch] = {}
    roots: dict[bytes | None, Branch] = {}
    result: dict[int, list[StoredStep]] = {}
    for row in rows:
        if row.parent_idx is not None:
            parent = known.get((row.rollout_id, row.attempt, row.parent_idx))
            if parent is None:
                raise ValueError(
                    f"step {row.idx} of rollout {row.rollout_id}, attempt {row.attempt} continues step {row.parent_idx}, "
                    "which is not stored before it"
                )
            above = parent
        else:
            if row.prompt_sha not in roots:
                roots[row.prompt_sha] = Branch(ids_from_bytes(row.prompt_ids or b""))
            above = roots[row.prompt_sha]
        own = np.concatenate([ids_from_bytes(row.delta), ids_from_bytes(row.action)])
        key = (row.rollout_id, row.attempt, row.idx)
        branch = known[key] = (
            Branch(own, above, row.keep_len)
            if like is None
            else routed_branch(own, above, row.keep_len, routed.get(key), like)
        )
        flat = row.spans
        result.setdefault(row.rollout_id, []).append(
            StoredStep(
                row.rollout_id, row.attempt, row.idx, StepKind(row.kind), row.parent_idx, row.keep_len, row.state_len, branch,
                logprobs_from_bytes(row.logprobs), tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True)), row.agent,
                row.parse, key in marked, float(row.params.get("temperature", 1.0)),
                row.reply or {}, row.finish,
            )
        )  # fmt: skip
    return result


@dataclass(frozen=True, slots=True)
class StepReading:
    """What rewards need of a step: everything but its tokens. `versions`: the policy versions that made it."""

    idx: int
    parse: str
    reply: dict[str, Any]
    marked: bool
    versions: frozenset[int]


async def readings(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> dict[int, list[StepReading]]:
    """Like `trajectories`, without any token column: contexts of a group can be hundreds of megabytes."""
    if not attempts_of:
        return {}
    marked = await _marked(connection, run_id, attempts_of)
    rows = await connection.execute(
        select(
            steps.c.rollout_id, steps.c.attempt, steps.c.idx, steps.c.parse, steps.c.spans, messages.c.reply
        )
        .join(messages, _READING, isouter=True)
        .where(steps.c.run_id == run_id, tuple_(steps.c.rollout_id, steps.c.attempt).in_(attempts_of))
        .order_by(steps.c.rollout_id, steps.c.attempt, steps.c.idx)
    )
    result: dict[int, list[StepReading]] = {}
    for row in rows:
        known = (row.rollout_id, row.attempt, row.idx) in marked
        result.setdefault(row.rollout_id, []).append(
            StepReading(row.idx, row.parse, row.reply or {}, known, frozenset(row.spans[::3]))
        )
    return result


_READING = (
    (messages.c.run_id == steps.c.run_id)
    & (messages.c.rollout_id == steps.c.rollout_id)
    & (messages.c.attempt == steps.c.attempt)
    & (messages.c.idx == steps.c.idx)
)


async def _marked(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> set[tuple[int, int, int]]:
    rows = await connection.execute(
        select(step_marks.c.rollout_id, step_marks.c.attempt, step_marks.c.idx).where(
            step_marks.c.run_id == run_id,
            tuple_(step_marks.c.rollout_id, step_marks.c.attempt).in_(attempts_of),
        )
    )
    return {(row.rollout_id, row.attempt, row.idx) for row in rows}
