"""One step token by token: its prompt and its answer, who wrote each token, and the trainer's values for it.

Positions count from the start of the state: the action is state_len … full_len − 1. A state holds actions of earlier steps: their tokens
have the logprob and version of their sampling; only the step's own action trains as its sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.choices import Anchor
from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.ids import ids_from_bytes, logprobs_from_bytes
from orchestrator.contracts.spans import from_flat, versions_per_token
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.steps import kept_out
from orchestrator.queries.latest_reward import reward_of
from orchestrator.queries.token_text import Detokenizer
from orchestrator.settings.trainer import TOKEN_BOUNDS

PAGE = 2_000
"""Tokens of one page: some 60 KB of JSON."""
MAX_PAGE = 20_000
# Bytes, and so tokens, decoded on both sides of a page, so that its edges garble nothing.
MAX_CHARACTER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Positions start … end − 1, written by `step`: `part` is prompt, delta (messages and template) or action. `version`: the policy that
    sampled them; None for tokens that were not sampled."""

    start: int
    end: int
    step: int
    part: str
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMap:
    """Who wrote which tokens of a step, in order, without the tokens. `weight`: the train weight of its action; None: not rewarded yet."""

    rollout_id: int
    attempt: int
    idx: int
    state_len: int
    full_len: int
    weight: float | None
    advantage: float | None
    marks: list[str]
    segments: list[Segment]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPage:
    """Tokens of positions start … start + len(ids) − 1, column by column. `texts`: None without the policy's tokenizer, with the reason in
    `note`.

    `logprobs`: behavior logprobs, None for tokens that were not sampled. `trainer_logprobs`, `ratios` and `clipped`: None as a whole if the
    trainer stored none for this step, else None for every token that its sample did not train. `clipped`: whether the ratio is outside the
    bounds of the loss; None for a loss that bounds no token's ratio to the behavior policy.
    """

    start: int
    total: int
    ids: list[int]
    texts: list[str] | None
    logprobs: list[float | None]
    trainer_logprobs: list[float | None] | None = None
    ratios: list[float | None] | None = None
    clipped: list[bool | None] | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTokens:
    """The tokens that one step sampled: text (or id) and behavior logprob of each, and the version of each."""

    idx: int
    texts: list[str]
    logprobs: list[float]
    versions: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepRow:
    idx: int
    parent: int | None
    keep_len: int
    state_len: int
    full_len: int
    spans: list[int]


_ABOVE = text(
    """WITH RECURSIVE w AS (
         SELECT idx, parent_idx, keep_len, state_len, full_len, spans FROM steps
          WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt AND idx = :idx
         UNION ALL
         SELECT s.idx, s.parent_idx, s.keep_len, s.state_len, s.full_len, s.spans FROM w JOIN steps s
             ON s.run_id = :run AND s.rollout_id = :rollout AND s.attempt = :attempt AND s.idx = w.parent_idx
          WHERE w.keep_len > 0)
       SELECT * FROM w ORDER BY idx DESC"""
)
_WEIGHT = text(
    f"""SELECT (p.step ->> 'weight')::float AS weight, (p.step ->> 'advantage')::float AS advantage
          FROM rollouts r {reward_of("r")}, jsonb_array_elements(w.per_step) WITH ORDINALITY AS p(step, at)
         WHERE r.rollout_id = :rollout AND w.attempt = :attempt AND p.at = :idx + 1"""
)
_MARKS = text(
    """SELECT reason FROM step_marks WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt AND idx = :idx
       ORDER BY reason"""
)
_IDS = text(
    """SELECT substr(step_full(:run, :rollout, :attempt, :idx), 4 * CAST(:start AS int) + 1, 4 * CAST(:n AS int)) AS ids"""
)
_LOGPROBS = text(
    """SELECT idx, logprobs FROM steps
        WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt AND idx = ANY(:steps)"""
)


_ACTIONS = text(
    """SELECT idx, action, logprobs, spans FROM steps
        WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt AND idx = ANY(:steps) ORDER BY idx"""
)


_TRAINED = text(
    """SELECT t.idx, t.logprobs, (r.config #>> '{trainer,ratio_min}')::float8 AS low, (r.config #>> '{trainer,ratio_max}')::float8 AS high,
              r.config #>> '{trainer,loss}' = ANY(:losses) AND r.config #>> '{trainer,anchor}' = :anchor AS bounded
         FROM trained_steps t JOIN batches b ON b.batch_id = t.batch_id AND b.state = 'committed' JOIN runs r ON r.run_id = t.run_id
        WHERE t.run_id = :run AND t.rollout_id = :rollout AND t.attempt = :attempt AND t.idx = ANY(:steps)"""
)


async def token_map(
    connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int, idx: int
) -> TokenMap:
    """Who wrote which tokens of one step. Raises NotFoundError."""
    key = {"run": run_id, "rollout": rollout_id, "attempt": attempt, "idx": idx}
    path = await _path(connection, key)
    rewarded = (await connection.execute(_WEIGHT, {k: key[k] for k in ("rollout", "attempt", "idx")})).first()
    marks = list(await connection.scalars(_MARKS, key))
    weight = 0.0 if kept_out(frozenset(marks)) else rewarded.weight if rewarded else None
    advantage = rewarded.advantage if rewarded else None
    last_step = path[0]
    return TokenMap(
        rollout_id=rollout_id,
        attempt=attempt,
        idx=idx,
        state_len=last_step.state_len,
        full_len=last_step.full_len,
        weight=weight,
        advantage=advantage,
        marks=marks,
        segments=_segments(path),
    )


async def tokens(
    connection: AsyncConnection,
    run_id: int,
    rollout_id: int,
    attempt: int,
    idx: int,
    detokenizer: Detokenizer | None,
    *,
    start: int = 0,
    n: int = PAGE,
) -> TokenPage:
    """A page of one step's tokens; empty after the last one. Raises NotFoundError."""
    key = {"run": run_id, "rollout": rollout_id, "attempt": attempt, "idx": idx}
    path = await _path(connection, key)
    total = path[0].full_len
    start = max(0, min(start, total))
    n = max(0, min(n, MAX_PAGE, total - start))
    first = max(0, start - MAX_CHARACTER)
    raw = await connection.scalar(_IDS, {**key, "start": first, "n": start + n + MAX_CHARACTER - first})
    padded_ids = ids_from_bytes(bytes(raw or b"")).tolist()
    ids = padded_ids[start - first : start - first + n]
    texts = (
        detokenizer.texts(padded_ids)[start - first : start - first + n] if detokenizer is not None else None
    )
    behavior, trainer, ratios, clipped = await _scored(connection, key, path, start, n)
    if all(value is None for value in trainer):
        return TokenPage(start=start, total=total, ids=ids, texts=texts, logprobs=behavior)
    return TokenPage(
        start=start,
        total=total,
        ids=ids,
        texts=texts,
        logprobs=behavior,
        trainer_logprobs=trainer,
        ratios=ratios,
        clipped=clipped,
    )


async def action_tokens(
    connection: AsyncConnection,
    run_id: int,
    rollout_id: int,
    attempt: int,
    steps: Sequence[int],
    detokenizer: Detokenizer | None,
) -> dict[int, ActionTokens]:
    """The sampled tokens of several steps, by idx: one scan."""
    key = {"run": run_id, "rollout": rollout_id, "attempt": attempt, "steps": list(steps)}
    found: dict[int, ActionTokens] = {}
    for row in await connection.execute(_ACTIONS, key):
        ids = ids_from_bytes(bytes(row.action)).tolist()
        texts = detokenizer.texts(ids) if detokenizer is not None else [f"{id} " for id in ids]
        found[row.idx] = ActionTokens(
            idx=row.idx,
            texts=texts,
            logprobs=logprobs_from_bytes(bytes(row.logprobs)).tolist(),
            versions=versions_per_token(from_flat(row.spans)).tolist(),
        )
    return found


async def _path(connection: AsyncConnection, key: dict[str, int]) -> list[_StepRow]:
    """The step and its ancestors whose tokens it holds, itself first."""
    rows = (await connection.execute(_ABOVE, key)).all()
    if not rows:
        raise NotFoundError(
            f"rollout {key['rollout']}, attempt {key['attempt']} has no step {key['idx']} in this run"
        )
    return [from_wide_row(_StepRow, row, parent=row.parent_idx) for row in rows]


def _segments(path: list[_StepRow]) -> list[Segment]:
    """Who wrote which positions, in order, from a step and its ancestors."""
    found: list[Segment] = []
    end = path[0].full_len
    for at, row in enumerate(path):
        for span in reversed(from_flat(row.spans)):
            start = row.state_len + span.start
            if start < end:
                found.append(Segment(start=start, end=end, step=row.idx, part="action", version=span.version))
                end = start
        if row.keep_len < end:
            found.append(Segment(start=row.keep_len, end=end, step=row.idx, part="delta", version=None))
            end = row.keep_len
        if at == len(path) - 1 and end:
            found.append(Segment(start=0, end=end, step=row.idx, part="prompt", version=None))
    return found[::-1]


async def _scored(
    connection: AsyncConnection, key: dict[str, int], path: list[_StepRow], start: int, n: int
) -> tuple[list[float | None], list[float | None], list[float | None], list[bool | None]]:
    """Behavior logprobs, trainer logprobs, ratios and whether these are outside the bounds, of positions start … start + n − 1. Tokens of an
    earlier step's action have the values with which that step's own sample was trained."""
    behavior: list[float | None] = [None] * n
    trainer, ratios = [*behavior], [*behavior]
    clipped: list[bool | None] = [None] * n
    rows = {row.idx: row for row in path}
    wanted = [s for s in _segments(path) if s.part == "action" and s.start < start + n and s.end > start]
    if not wanted:
        return behavior, trainer, ratios, clipped
    parameters: dict[str, Any] = {**_whose(key), "steps": sorted({segment.step for segment in wanted})}
    bounds = {"losses": list(TOKEN_BOUNDS), "anchor": Anchor.BEHAVIOR}
    sampled = {
        row.idx: logprobs_from_bytes(bytes(row.logprobs))
        for row in await connection.execute(_LOGPROBS, parameters)
    }
    trained = {row.idx: row for row in await connection.execute(_TRAINED, parameters | bounds)}
    for segment in wanted:
        offset, row = rows[segment.step].state_len, trained.get(segment.step)
        trainer_logprobs = None if row is None else logprobs_from_bytes(bytes(row.logprobs))
        for position in range(max(segment.start, start), min(segment.end, start + n)):
            at, logprob = position - start, float(sampled[segment.step][position - offset])
            behavior[at] = round(logprob, 5)
            recomputed = (
                float(trainer_logprobs[position - offset])
                if trainer_logprobs is not None and position - offset < len(trainer_logprobs)
                else math.nan
            )
            if row is None or not math.isfinite(recomputed):
                continue
            ratio = math.exp(min(80.0, max(-80.0, recomputed - logprob)))
            trainer[at], ratios[at] = round(recomputed, 5), round(ratio, 5)
            if row.bounded:
                clipped[at] = ratio < row.low or ratio > row.high
    return behavior, trainer, ratios, clipped


def _whose(key: dict[str, int]) -> dict[str, int]:
    return {name: key[name] for name in ("run", "rollout", "attempt")}
