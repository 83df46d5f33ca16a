"""Steps: ingest of what gateways record, and reading trajectories back. Stored as a tree of deltas, immutable.

Ingest is one insert per batch with ON CONFLICT DO NOTHING: replays are no-ops, a different row under the same key is a conflict.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import StepRecorded
from orchestrator.contracts.ids import (
    Ids,
    Logprobs,
    ids_from_bytes,
    logprobs_from_bytes,
    prompt_sha,
    row_sha,
    sha256,
    unb64,
)
from orchestrator.contracts.states import RolloutState, StepKind
from orchestrator.pool import history
from orchestrator.pool.clean import clean, clean_json
from orchestrator.pool.tables import messages, prompts, rollouts, sampling, step_marks, steps


def canonical(params: dict[str, Any]) -> bytes:
    """Canonical JSON of sampling parameters: the bytes that row_sha covers."""
    return msgspec.json.encode(params, order="sorted")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A checked step message with its binary parts."""

    event: StepRecorded
    delta: bytes
    action: bytes
    logprobs: bytes
    prompt: bytes | None
    prompt_digest: bytes | None

    @property
    def key(self) -> tuple[int, int, int]:
        return self.event.rollout, self.event.attempt, self.event.idx


def decode_step(event: StepRecorded) -> Decoded:
    """Check lengths, spans and digests. Raises MessageError naming what does not fit."""
    name = f"step {event.rollout}:{event.attempt}:{event.idx}"
    try:
        delta, action, logprobs = unb64(event.delta), unb64(event.action), unb64(event.logprobs)
        prompt = unb64(event.prompt) if event.prompt is not None else None
        digest = bytes.fromhex(event.prompt_sha) if event.prompt_sha else None
        chain, row = bytes.fromhex(event.chain_sha), bytes.fromhex(event.row_sha)
        kind = StepKind(event.kind)
    except ValueError as error:
        raise MessageError(f"{name}: {error}") from error
    n = event.full_len - event.state_len
    problems = []
    if len(delta) != 4 * (event.state_len - event.keep_len):
        problems.append("delta does not hold state_len - keep_len ids")
    if len(action) != 4 * n or len(logprobs) != 4 * n:
        problems.append("action and logprobs do not hold full_len - state_len values")
    end = 0
    for span in event.spans:
        if span.start != end or span.end <= span.start:
            problems.append("version spans do not tile the action")
            break
        end = span.end
    if end != n:
        problems.append("version spans do not cover the action")
    if (kind is StepKind.ROOT) != (event.parent is None):
        problems.append("exactly the roots have no parent")
    if prompt is not None and digest != prompt_sha(prompt):
        problems.append("prompt_sha is not the digest of the prompt")
    spans = [(span.version, span.start, span.end) for span in event.spans]
    if row != row_sha(chain, logprobs, spans, canonical(event.sampling)):
        problems.append("row_sha is not the digest of the row")
    if problems:
        raise MessageError(f"{name}: " + "; ".join(dict.fromkeys(problems)))
    return Decoded(event, delta, action, logprobs, prompt, digest)


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of a batch of steps, by (rollout, attempt, idx). `waiting` are rollouts whose result came before these steps."""

    new: set[tuple[int, int, int]]
    duplicates: set[tuple[int, int, int]]
    stale: set[tuple[int, int, int]]
    conflicts: set[tuple[int, int, int]]
    waiting: set[int]


async def ingest(connection: AsyncConnection, run_id: int, arrived: Sequence[Decoded]) -> Ingested:
    """Write steps of one run. Steps of an old lease epoch are refused and counted; replays are no-ops."""
    ids = sorted({step.event.rollout for step in arrived})
    rows = await connection.execute(
        select(rollouts.c.rollout_id, rollouts.c.attempt, rollouts.c.lease_epoch, rollouts.c.state)
        .where(rollouts.c.run_id == run_id, rollouts.c.rollout_id.in_(ids))
        .order_by(rollouts.c.rollout_id)
        .with_for_update(read=True)
    )
    owners = {row.rollout_id: row for row in rows}
    fresh: dict[tuple[int, int, int], Decoded] = {}
    stale: set[tuple[int, int, int]] = set()
    conflicts: set[tuple[int, int, int]] = set()
    for step in arrived:
        owner = owners.get(step.event.rollout)
        current = owner is not None and (owner.attempt, owner.lease_epoch) == (
            step.event.attempt,
            step.event.epoch,
        )
        if not current:
            stale.add(step.key)
        elif step.key in fresh and fresh[step.key].event.row_sha != step.event.row_sha:
            conflicts.add(step.key)
        else:
            fresh.setdefault(step.key, step)
    new: set[tuple[int, int, int]] = set()
    if fresh:
        new = await _write(connection, run_id, list(fresh.values()))
    repeated = [step for key, step in fresh.items() if key not in new]
    stored = await _row_shas(connection, run_id, [step.key for step in repeated])
    conflicts |= {step.key for step in repeated if stored[step.key].hex() != step.event.row_sha}
    # A stale step that is already stored is an ordinary late repeat.
    known = await _row_shas(connection, run_id, sorted(stale))
    duplicates = ({step.key for step in repeated} - conflicts) | set(known)
    stale -= set(known)
    for name, amount in (
        ("steps_stale", len(stale)),
        ("steps_conflicting", len(conflicts)),
        ("steps_repeated", len(duplicates)),
    ):
        if amount:
            await history.count(connection, run_id, name, amount)
    waiting = {row.rollout_id for row in owners.values() if row.state == RolloutState.REPORTED}
    return Ingested(new, duplicates, stale, conflicts, waiting)


async def _row_shas(
    connection: AsyncConnection, run_id: int, keys: Sequence[tuple[int, int, int]]
) -> dict[tuple[int, int, int], bytes]:
    if not keys:
        return {}
    rows = await connection.execute(
        select(steps.c.rollout_id, steps.c.attempt, steps.c.idx, steps.c.row_sha).where(
            steps.c.run_id == run_id, tuple_(steps.c.rollout_id, steps.c.attempt, steps.c.idx).in_(keys)
        )
    )
    return {(row.rollout_id, row.attempt, row.idx): row.row_sha for row in rows}


async def _sampling_ids(
    connection: AsyncConnection, run_id: int, batch: Iterable[Decoded]
) -> dict[bytes, int]:
    wanted = {sha256(canonical(step.event.sampling)): step.event.sampling for step in batch}
    query = select(sampling.c.sha, sampling.c.sampling_id).where(
        sampling.c.run_id == run_id, sampling.c.sha.in_(wanted)
    )
    known = {row.sha: row.sampling_id for row in await connection.execute(query)}
    missing = sorted(set(wanted) - set(known))
    if missing:
        await connection.execute(
            insert(sampling).on_conflict_do_nothing(),
            [{"run_id": run_id, "sha": sha, "params": wanted[sha]} for sha in missing],
        )
        known = {row.sha: row.sampling_id for row in await connection.execute(query)}
    return known


async def _write(connection: AsyncConnection, run_id: int, batch: list[Decoded]) -> set[tuple[int, int, int]]:
    roots = {
        step.prompt_digest: step.prompt for step in batch if step.prompt is not None and step.prompt_digest
    }
    if roots:
        await connection.execute(
            insert(prompts).on_conflict_do_nothing(),
            [
                {"run_id": run_id, "sha": sha, "n": len(ids) // 4, "ids": ids}
                for sha, ids in sorted(roots.items())
            ],
        )
    sampling_ids = await _sampling_ids(connection, run_id, batch)
    rows = await connection.execute(
        insert(steps)
        .values([_row(run_id, step, sampling_ids[sha256(canonical(step.event.sampling))]) for step in batch])
        .on_conflict_do_nothing()
        .returning(steps.c.rollout_id, steps.c.attempt, steps.c.idx)
    )
    new = {(row.rollout_id, row.attempt, row.idx) for row in rows}
    written = [step for step in batch if step.key in new]
    if written:
        await connection.execute(
            insert(messages).on_conflict_do_nothing(),
            [
                {
                    "run_id": run_id,
                    "rollout_id": step.event.rollout,
                    "attempt": step.event.attempt,
                    "idx": step.event.idx,
                    "appended": clean_json(step.event.appended),
                    "reply": clean_json(step.event.reply),
                }
                for step in written
            ],
        )
    return new


def _row(run_id: int, step: Decoded, sampling_id: int) -> dict[str, Any]:
    event = step.event
    versions = [span.version for span in event.spans] or [0]
    return {
        "run_id": run_id,
        "rollout_id": event.rollout,
        "attempt": event.attempt,
        "idx": event.idx,
        "epoch": event.epoch,
        "kind": event.kind,
        "parent_idx": event.parent,
        "root_idx": event.root,
        "prompt_sha": step.prompt_digest,
        "keep_len": event.keep_len,
        "state_len": event.state_len,
        "full_len": event.full_len,
        "v_lo": min(versions),
        "v_hi": max(versions),
        "spans": [x for span in event.spans for x in (span.version, span.start, span.end)],
        "sampling_id": sampling_id,
        "agent": clean(event.agent),
        "finish": event.finish,
        "parse": event.parse,
        "t_queue": event.timings.queue,
        "t_first": event.timings.first_byte,
        "t_gen": event.timings.generation,
        "t_gap": event.timings.gap,
        "request_digest": bytes.fromhex(event.request_digest) or None,
        "branch_reason": clean(event.branch_reason) if event.branch_reason else None,
        "chain_sha": bytes.fromhex(event.chain_sha),
        "row_sha": bytes.fromhex(event.row_sha),
        "delta": step.delta,
        "action": step.action,
        "logprobs": step.logprobs,
    }


@dataclass(frozen=True, slots=True, eq=False)
class StoredStep:
    """One step with its context rebuilt. full: int32[full_len]; logprobs: float32[full_len - state_len]."""

    rollout_id: int
    attempt: int
    idx: int
    kind: StepKind
    parent: int | None
    keep_len: int
    state_len: int
    full: Ids
    logprobs: Logprobs
    spans: tuple[tuple[int, int, int], ...]  # (version, start, end) over the action
    agent: str
    parse: str
    marked: bool
    temperature: float
    reply: dict[str, Any]

    @property
    def action(self) -> Ids:
        return self.full[self.state_len :]


async def trajectories(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> dict[int, list[StoredStep]]:
    """The steps of (rollout, attempt) pairs by rollout, in idx order: one index scan, folded once."""
    if not attempts_of:
        return {}
    key = tuple_(steps.c.rollout_id, steps.c.attempt).in_(attempts_of)
    marked = {
        (row.rollout_id, row.attempt, row.idx)
        for row in await connection.execute(
            select(step_marks.c.rollout_id, step_marks.c.attempt, step_marks.c.idx).where(
                step_marks.c.run_id == run_id,
                tuple_(step_marks.c.rollout_id, step_marks.c.attempt).in_(attempts_of),
            )
        )
    }
    rows = (
        await connection.execute(
            select(steps, prompts.c.ids.label("prompt_ids"), sampling.c.params, messages.c.reply)
            .join(
                prompts,
                (prompts.c.run_id == steps.c.run_id) & (prompts.c.sha == steps.c.prompt_sha),
                isouter=True,
            )
            .join(sampling, sampling.c.sampling_id == steps.c.sampling_id)
            .join(
                messages,
                (messages.c.run_id == steps.c.run_id)
                & (messages.c.rollout_id == steps.c.rollout_id)
                & (messages.c.attempt == steps.c.attempt)
                & (messages.c.idx == steps.c.idx),
                isouter=True,
            )
            .where(steps.c.run_id == run_id, key)
            .order_by(steps.c.rollout_id, steps.c.attempt, steps.c.idx)
        )
    ).all()
    folded: dict[tuple[int, int, int], Ids] = {}
    result: dict[int, list[StoredStep]] = {}
    empty = np.empty(0, dtype="<i4")
    for row in rows:
        if row.parent_idx is not None:
            base = folded[row.rollout_id, row.attempt, row.parent_idx]
        else:
            base = ids_from_bytes(row.prompt_ids) if row.prompt_ids is not None else empty
        full = np.concatenate([base[: row.keep_len], ids_from_bytes(row.delta), ids_from_bytes(row.action)])
        folded[row.rollout_id, row.attempt, row.idx] = full
        flat = row.spans
        result.setdefault(row.rollout_id, []).append(
            StoredStep(
                row.rollout_id, row.attempt, row.idx, StepKind(row.kind), row.parent_idx, row.keep_len, row.state_len, full,
                logprobs_from_bytes(row.logprobs), tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True)), row.agent,
                row.parse, (row.rollout_id, row.attempt, row.idx) in marked, float(row.params.get("temperature", 1.0)),
                row.reply or {},
            )
        )  # fmt: skip
    return result
