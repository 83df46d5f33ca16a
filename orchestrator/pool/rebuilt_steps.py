"""The recorded steps of an attempt with their messages, from which a gateway rebuilds a session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import versions_in_flat
from orchestrator.contracts.states import StepKind
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.tables import messages, prompts, step_marks, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltStep:
    """The common part of a steps row and a StepRecorded."""

    idx: int
    kind: StepKind
    parent: int | None
    root: int
    keep_len: int
    prompt: bytes
    delta: bytes
    action: bytes
    chain: bytes
    versions: tuple[int, ...]
    agent: str
    parse: ParseStatus
    finish: Finish
    digest: str | None
    appended: Sequence[Mapping[str, Any]]
    reply: Mapping[str, Any]
    generation_s: float
    ended_at: float
    epoch: int
    marks: Sequence[str] = ()  # of its record; later ones are in the session's row


async def rebuilt_steps(
    connection: AsyncConnection, run_id: int, rollout: int, attempt: int
) -> list[RebuiltStep]:
    """The steps of an attempt, in no order, with the marks of their records."""
    marks: dict[int, list[str]] = {}
    kept = step_marks.c
    where = (kept.run_id == run_id, kept.rollout_id == rollout, kept.attempt == attempt)
    for mark in await connection.execute(select(kept.idx, kept.reason).where(*where)):
        marks.setdefault(mark.idx, []).append(mark.reason)
    rows = await connection.execute(
        select(steps, prompts.c.ids.label("prompt_ids"), messages.c.appended, messages.c.reply.label("reply"))
        .join(
            prompts,
            (prompts.c.run_id == steps.c.run_id) & (prompts.c.sha == steps.c.prompt_sha),
            isouter=True,
        )
        .join(
            messages,
            (messages.c.run_id == steps.c.run_id)
            & (messages.c.rollout_id == steps.c.rollout_id)
            & (messages.c.attempt == steps.c.attempt)
            & (messages.c.idx == steps.c.idx),
        )
        .where(steps.c.run_id == run_id, steps.c.rollout_id == rollout, steps.c.attempt == attempt)
    )
    return [_from_row(row, marks.get(row.idx, ())) for row in rows]


def _from_row(row: Any, marks: Sequence[str]) -> RebuiltStep:
    return from_wide_row(
        RebuiltStep,
        row,
        kind=StepKind(row.kind),
        parent=row.parent_idx,
        root=row.root_idx,
        prompt=row.prompt_ids or b"",
        chain=row.chain_sha,
        versions=tuple(sorted(versions_in_flat(row.spans))),
        finish=Finish(row.finish),
        digest=row.request_digest.hex() if row.request_digest else None,
        generation_s=row.t_gen or 0.0,
        ended_at=row.ended.timestamp() if row.ended is not None else 0.0,
        marks=marks,
    )
