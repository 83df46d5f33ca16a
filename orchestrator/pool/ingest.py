"""Ingest: writes the steps that gateways record into the tree of deltas. Steps are immutable.

One insert per batch with ON CONFLICT DO NOTHING: replays are no-ops, a different row under the same key is a conflict. Messages arrive in any
order, so a parent may be missing for a while: `broken_steps` checks whole trajectories once they are complete.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Table, select, tuple_
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import MAX_WEIGHTS, StepRecorded
from orchestrator.contracts.ids import (
    LOGPROB_SLACK,
    NO_PARENT,
    WEIGHTS,
    chain_sha,
    ids_from_bytes,
    logprobs_from_bytes,
    prompt_sha,
    row_sha,
    sha256,
    unb64,
)
from orchestrator.contracts.marks import MarkReason
from orchestrator.contracts.numbers import INT2, INT4, INT8
from orchestrator.contracts.spans import flat, not_tiling
from orchestrator.contracts.states import RolloutState, StepKind
from orchestrator.pool import transitions
from orchestrator.pool.lease_check import not_current
from orchestrator.pool.sanitize import clean, clean_json
from orchestrator.pool.step_content import odd_content
from orchestrator.pool.steps import canonical
from orchestrator.pool.tables import (
    messages,
    prompts,
    rollouts,
    sampling,
    step_marks,
    step_routes,
    steps,
)
from orchestrator.trajectory.routes import routes_sha

Key = tuple[int, int, int]  # rollout, attempt, idx

YEAR = 366 * 86400.0
LAST = 200 * YEAR  # seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A checked step message with its binary parts."""

    event: StepRecorded
    delta: bytes
    action: bytes
    logprobs: bytes
    prompt: bytes | None
    prompt_digest: bytes | None
    chain: bytes
    row: bytes
    request_digest: bytes | None
    routes: bytes | None  # with the event's start, layers, top_k and width
    routes_sha: bytes

    @property
    def key(self) -> Key:
        return self.event.rollout, self.event.attempt, self.event.idx


def decode_step(event: StepRecorded) -> Decoded:
    """Check lengths, ids, logprobs, lineage, spans, texts and digests. Raises MessageError naming every mismatch."""
    name = f"step {event.rollout}:{event.attempt}:{event.idx}"
    try:
        step = Decoded(
            event=event,
            delta=unb64(event.delta),
            action=unb64(event.action),
            logprobs=unb64(event.logprobs),
            prompt=unb64(event.prompt) if event.prompt is not None else None,
            prompt_digest=bytes.fromhex(event.prompt_sha) if event.prompt_sha else None,
            chain=bytes.fromhex(event.chain_sha),
            row=bytes.fromhex(event.row_sha),
            request_digest=bytes.fromhex(event.request_digest) if event.request_digest else None,
            routes=unb64(event.routes.ids) if event.routes is not None else None,
            routes_sha=bytes.fromhex(event.routes.sha) if event.routes is not None else b"",
        )
    except ValueError as error:
        raise MessageError(f"{name}: {error}") from error
    problems = [
        *_out_of_range(step),
        *_wrong_lengths(step),
        *_wrong_logprobs(step),
        *_wrong_lineage(step),
        *_wrong_times(step),
        *odd_content(event),
    ]
    try:
        problems += [*_wrong_digests(step), *_wrong_routes(step)]
    except OverflowError as error:
        problems.append(f"a number is too large: {error}")
    if problems:
        raise MessageError(f"{name}: " + "; ".join(problems))
    return step


def _out_of_range(step: Decoded) -> Iterable[str]:
    """Numbers that no column holds: Postgres would refuse them in its own words."""
    event = step.event
    for name, value, most in (
        ("rollout", event.rollout, INT8),
        ("attempt", event.attempt, INT2),
        ("epoch", event.epoch, INT4),
        ("idx", event.idx, INT4),
        ("parent", event.parent or 0, INT4),
        ("root", event.root, INT4),
        ("full_len", event.full_len, INT4),
    ):
        if not 0 <= value <= most:
            yield f"{name} {value} does not exist"


def _wrong_lengths(step: Decoded) -> Iterable[str]:
    event = step.event
    if not 0 <= event.keep_len <= event.state_len <= event.full_len:
        yield "keep_len, state_len and full_len must ascend from 0"
    if len(step.delta) != 4 * (event.state_len - event.keep_len):
        yield "delta does not hold state_len - keep_len ids"
    n = event.full_len - event.state_len
    if n == 0:
        yield "an action has at least one token"  # else no policy version made it
    if event.state_len == 0 < n:
        yield f"an action of {n} tokens has an empty state: its first token would have no predictor"
    if len(step.action) != 4 * n or len(step.logprobs) != 4 * n:
        yield "action and logprobs do not hold full_len - state_len values"
    for name, ids in (("prompt", step.prompt), ("delta", step.delta), ("action", step.action)):
        if len(ids or b"") % 4:
            yield f"{name} does not hold whole ids"
        elif ids and ids_from_bytes(ids).min() < 0:
            yield f"{name} holds a negative id"
    if fault := not_tiling(event.spans, n):
        yield fault
    if len(event.weights) > MAX_WEIGHTS or not all(map(WEIGHTS.fullmatch, event.weights)):
        yield f"weights are not version:digest, {MAX_WEIGHTS} times at most"
    for span in event.spans:
        if not 0 <= span.version < 2**31:
            yield f"policy version {span.version} does not exist"
            return


def _wrong_logprobs(step: Decoded) -> Iterable[str]:
    """A NaN logprob would put the whole batch into quarantine. Scripted replies and certain tokens have exactly 0."""
    if len(step.logprobs) % 4:
        return  # already reported: their number differs from the action's ids
    values = logprobs_from_bytes(step.logprobs)
    for invalid, rule in ((~np.isfinite(values), "finite"), (values > LOGPROB_SLACK, "at most 0")):
        if invalid.any():
            at = int(invalid.argmax())
            yield f"the logprob of token {at} is {float(values[at]):g}, it must be {rule}"
            return


def _wrong_times(step: Decoded) -> Iterable[str]:
    """A value that its column cannot hold would put the whole batch into quarantine."""
    for name, value in msgspec.structs.asdict(step.event.timings).items():
        maximum, rule = (LAST, "since 1970") if name == "ended" else (YEAR, "from 0 on")
        if not 0.0 <= value <= maximum:
            yield f"timings.{name} is {value}, it must be seconds {rule}"


def _wrong_lineage(step: Decoded) -> Iterable[str]:
    event = step.event
    if event.kind == StepKind.ROOT:
        if event.parent is not None or event.root != event.idx:
            yield "a root has no parent and is its own root"
        if (step.prompt is None) != (step.prompt_digest is None):
            yield "a root carries its prompt and the prompt's digest, or neither"
        if event.keep_len > len(step.prompt or b"") // 4:
            yield "keep_len is longer than the prompt"
    else:
        if event.parent is None or not 0 <= event.root <= event.parent < event.idx:
            yield "a step that is not a root has an earlier parent and root"
        if step.prompt is not None or step.prompt_digest is not None:
            yield "only a root has a prompt"


def _wrong_digests(step: Decoded) -> Iterable[str]:
    event = step.event
    if step.prompt is not None and step.prompt_digest != prompt_sha(step.prompt):
        yield "prompt_sha is not the digest of the prompt"
    if event.kind == StepKind.ROOT and event.keep_len >= 0:
        parent_digest = (
            step.prompt_digest if step.prompt_digest and len(step.prompt_digest) == 32 else NO_PARENT
        )
        if step.chain != chain_sha(parent_digest, event.keep_len, step.delta, step.action):
            yield "chain_sha is not the digest of the root"
    digest = row_sha(step.chain, step.logprobs, flat(event.spans), canonical(event.sampling))
    if len(step.chain) != 32 or step.row != digest:
        yield "row_sha is not the digest of the row"


def _wrong_routes(step: Decoded) -> Iterable[str]:
    header = step.event.routes
    if header is None or step.routes is None:
        return
    if not (0 < header.layers < 2**15 and 0 < header.top_k < 2**15 and header.width in (1, 2)):
        yield f"there are no routes of {header.layers} layers, {header.top_k} experts and {header.width} bytes per id"
        return
    tokens, remainder = divmod(len(step.routes), header.layers * header.top_k * header.width)
    if remainder or not tokens or header.start < 0 or header.start + tokens >= step.event.full_len:
        yield "routes are not whole rows of tokens that were fed"
    elif header.start > (len(step.prompt or b"") // 4 if step.event.parent is None else step.event.keep_len):
        yield "routes begin behind the first token that the step was sampled after"
    elif step.routes_sha != routes_sha(
        step.chain, header.start, header.layers, header.top_k, header.width, step.routes
    ):
        yield "the digest of the routes is another"


def policies_of(step: Decoded) -> set[int]:
    """The policy versions that generated this step's tokens, if it may train. Empty for a script, which is not a policy, and for a step with a
    suspect version, whose spans may name weights that are not ours."""
    if step.event.sampling.get("scripted") is True or MarkReason.VERSION_SUSPECT in step.event.marks:
        return set()
    return {span.version for span in step.event.spans}


def highest_id(step: Decoded) -> int:
    """The highest token id of a step's prompt, state and action; -1 without ids."""
    parts = (step.prompt, step.delta, step.action)
    return max((int(ids_from_bytes(ids).max()) for ids in parts if ids), default=-1)


class Fate(StrEnum):
    """The outcome of one arrived step."""

    NEW = "new"
    REPEATED = "repeated"  # it is stored already: a no-op
    STALE = "stale"  # its lease epoch is over: refused
    CONFLICTING = "conflicting"  # another row has its key: refused, because steps never change


@dataclass(frozen=True, slots=True)
class Ingested:
    """`fates` in order of arrival; `why`: the reasons of stale steps, by position. `waiting`: rollouts of these steps whose result arrived
    earlier."""

    fates: Sequence[Fate]
    why: Mapping[int, str]
    waiting: frozenset[int]


async def ingest(connection: AsyncConnection, run_id: int, arrived: Sequence[Decoded]) -> Ingested:
    """Write steps of one run. A step that is not new is counted, never silently dropped.

    The rollouts are share-locked: no epoch can change between the check and the commit.
    """
    owners = {
        row.rollout_id: row
        for row in await connection.execute(
            select(rollouts.c.rollout_id, rollouts.c.attempt, rollouts.c.lease_epoch, rollouts.c.state)
            .where(
                rollouts.c.run_id == run_id,
                rollouts.c.rollout_id.in_({step.event.rollout for step in arrived}),
            )
            .order_by(rollouts.c.rollout_id)
            .with_for_update(read=True)
        )
    }

    def flaw(step: Decoded) -> str | None:
        return not_current(step.event.attempt, step.event.epoch, owners.get(step.event.rollout))

    def current(step: Decoded) -> bool:
        return flaw(step) is None

    first: dict[Key, Decoded] = {}
    for step in arrived:
        if current(step):
            first.setdefault(step.key, step)
    new = await _write(connection, run_id, list(first.values())) if first else set()
    stored_shas = await _row_shas(connection, run_id, {step.key for step in arrived} - new)

    def fate(step: Decoded) -> Fate:
        if step.key in new and step is first[step.key]:
            return Fate.NEW
        stored = first[step.key].row if step.key in new else stored_shas.get(step.key)
        if stored == step.row:
            return Fate.REPEATED
        return Fate.CONFLICTING if stored is not None and current(step) else Fate.STALE

    fates = [fate(step) for step in arrived]
    for outcome in (Fate.STALE, Fate.CONFLICTING, Fate.REPEATED):
        if amount := fates.count(outcome):
            await transitions.count(connection, run_id, f"steps_{outcome}", amount)
    waiting = {id for id, row in owners.items() if row.state == RolloutState.REPORTED}
    reasons = {
        i: flaw(arrived[i]) or "it is not stored" for i, outcome in enumerate(fates) if outcome is Fate.STALE
    }
    return Ingested(fates, reasons, frozenset(waiting))


async def _row_shas(connection: AsyncConnection, run_id: int, keys: Iterable[Key]) -> dict[Key, bytes]:
    requested = sorted(keys)
    if not requested:
        return {}
    rows = await connection.execute(
        select(steps.c.rollout_id, steps.c.attempt, steps.c.idx, steps.c.row_sha).where(
            steps.c.run_id == run_id, tuple_(steps.c.rollout_id, steps.c.attempt, steps.c.idx).in_(requested)
        )
    )
    return {(row.rollout_id, row.attempt, row.idx): row.row_sha for row in rows}


async def _sampling_ids(
    connection: AsyncConnection, run_id: int, batch: Iterable[Decoded]
) -> dict[bytes, int]:
    params_by_sha = {sha256(canonical(step.event.sampling)): step.event.sampling for step in batch}
    query = select(sampling.c.sha, sampling.c.sampling_id).where(
        sampling.c.run_id == run_id, sampling.c.sha.in_(params_by_sha)
    )
    id_by_sha = {row.sha: row.sampling_id for row in await connection.execute(query)}
    missing = sorted(set(params_by_sha) - set(id_by_sha))
    if missing:
        await connection.execute(
            insert(sampling).on_conflict_do_nothing(),
            [{"run_id": run_id, "sha": sha, "params": params_by_sha[sha]} for sha in missing],
        )
        id_by_sha = {row.sha: row.sampling_id for row in await connection.execute(query)}
    return id_by_sha


async def _write(connection: AsyncConnection, run_id: int, batch: list[Decoded]) -> set[Key]:
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
    rows = [_row(run_id, step, sampling_ids[sha256(canonical(step.event.sampling))]) for step in batch]
    written = await connection.exec_driver_sql(_INSERT_STEPS, _columns(steps, rows))
    new = {(row.rollout_id, row.attempt, row.idx) for row in written}
    if routes := [row for step in batch if step.key in new for row in _routes(run_id, step)]:
        await connection.exec_driver_sql(_INSERT_ROUTES, _columns(step_routes, routes))
    if texts := [_message(run_id, step) for step in batch if step.key in new]:
        await connection.exec_driver_sql(_INSERT_MESSAGES, _columns(messages, texts))
    # Marks known when a step is recorded are stored now: its gateway may be gone before the result repeats them.
    if marks := [mark for step in batch if step.key in new for mark in _marks(run_id, step)]:
        await connection.execute(insert(step_marks).on_conflict_do_nothing(), marks)
    return new


def _row(run_id: int, step: Decoded, sampling_id: int) -> dict[str, Any]:
    event = step.event
    versions = [span.version for span in event.spans]
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
        "spans": _array(flat(event.spans)),
        "sampling_id": sampling_id,
        "agent": clean(event.agent),
        "finish": clean(event.finish),
        "parse": clean(event.parse),
        "t_queue": event.timings.queue,
        "t_first": event.timings.first_byte,
        "t_gen": event.timings.generation,
        "t_gap": event.timings.gap,
        "ended": datetime.fromtimestamp(event.timings.ended, UTC) if event.timings.ended else None,
        "request_digest": step.request_digest,
        "branch_reason": clean(event.branch_reason) if event.branch_reason else None,
        "branch": msgspec.json.encode(clean_json(event.branch)).decode() if event.branch else None,
        "chain_sha": step.chain,
        "row_sha": step.row,
        "delta": step.delta,
        "action": step.action,
        "logprobs": step.logprobs,
        "weights": _array(event.weights) if event.weights else None,
    }


def _array(values: Iterable[object]) -> str:
    """For numbers, and texts without quotes and commas."""
    return "{" + ",".join(map(str, values)) + "}"


def _message(run_id: int, step: Decoded) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "rollout_id": step.event.rollout,
        "attempt": step.event.attempt,
        "idx": step.event.idx,
        "appended": msgspec.json.encode(clean_json(step.event.appended)).decode(),
        "reply": msgspec.json.encode(clean_json(step.event.reply)).decode(),
    }


def _routes(run_id: int, step: Decoded) -> list[dict[str, Any]]:
    header = step.event.routes
    if header is None:
        return []
    rollout_id, attempt, idx = step.key
    keys = {"run_id": run_id, "rollout_id": rollout_id, "attempt": attempt, "idx": idx}
    shape = {"start": header.start, "layers": header.layers, "top_k": header.top_k, "width": header.width}
    return [keys | shape | {"sha": step.routes_sha, "routes": step.routes}]


def _marks(run_id: int, step: Decoded) -> list[dict[str, Any]]:
    rollout_id, attempt, idx = step.key
    keys = {"run_id": run_id, "rollout_id": rollout_id, "attempt": attempt, "idx": idx}
    return [keys | {"reason": clean(reason)} for reason in step.event.marks]


def _unnested(table: Table) -> str:
    """One insert of many rows: an array parameter per column, about 10 times cheaper than a parameter per value.

    Arrays and JSON travel as text, because unnest would flatten an array of arrays.
    """
    names = _names(table)
    dialect = postgresql.asyncpg.dialect()  # type: ignore[no-untyped-call]
    kinds = [table.c[name].type.compile(dialect=dialect) for name in names]
    sent = ["TEXT" if kind == "JSONB" or kind.endswith("[]") else kind for kind in kinds]
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(sent, 1))
    values = ", ".join(f"{name}::{kind}" for name, kind in zip(names, kinds, strict=True))
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {values} FROM unnest({arrays}) AS v({', '.join(names)}) "
        "ON CONFLICT DO NOTHING RETURNING rollout_id, attempt, idx"
    )


def _names(table: Table) -> list[str]:
    return [column.name for column in table.c if column.server_default is None]


def _columns(table: Table, rows: Sequence[dict[str, Any]]) -> tuple[list[Any], ...]:
    return tuple([row[name] for row in rows] for name in _names(table))


_INSERT_STEPS, _INSERT_MESSAGES, _INSERT_ROUTES = map(_unnested, (steps, messages, step_routes))
