"""The steps of an attempt as a tree, with what each waited for, ran and was paid. Their texts are in `look.steps`, their tokens in `look.tokens`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.look.past import seconds_of


@dataclass(frozen=True, slots=True)
class Span:
    """Action tokens start … end − 1 were made by `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepRewards:
    """What one step was paid, and what its sample was worth; `signals`: process penalties by name. `weight` 0: it does not train."""

    reward: float
    process: float
    speed: float
    performance: float
    return_to_go: float | None
    advantage: float | None
    weight: float
    signals: dict[str, float]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One tool execution; seconds since the attempt's start, bytes of output."""

    call: int
    name: str
    start: float | None
    end: float | None
    exit_code: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One completion without its texts. `added`: tokens that its request added; `action`: tokens that were sampled; `tools`: names of the
    calls that it made; `mean_logprob` is not here, `look.tokens` has every one."""

    idx: int
    parent: int | None
    kind: str
    agent: str
    branch_reason: str | None
    branch: dict[str, Any] | None
    keep_len: int
    state_len: int
    full_len: int
    added: int
    action: int
    spans: list[Span]
    finish: str
    parse: str
    marks: list[str]
    tools: list[str]
    tool_runs: list[ToolRun]
    t_queue: float
    t_first: float
    t_gen: float
    t_gap: float
    at: float
    epoch: int
    rewards: StepRewards | None


_STEPS = text(
    f"""SELECT s.idx, s.parent_idx, s.kind, s.agent, s.branch_reason, s.branch, s.keep_len, s.state_len, s.full_len, s.spans, s.finish,
               s.parse, coalesce(s.t_queue, 0)::float8 AS t_queue, coalesce(s.t_first, 0)::float8 AS t_first,
               coalesce(s.t_gen, 0)::float8 AS t_gen, coalesce(s.t_gap, 0)::float8 AS t_gap, {seconds_of("s.at")}, s.epoch,
               ARRAY(SELECT c ->> 'name' FROM jsonb_array_elements(
                       CASE jsonb_typeof(m.reply -> 'tool_calls') WHEN 'array' THEN m.reply -> 'tool_calls' ELSE '[]' END) c) AS tools
          FROM steps s LEFT JOIN messages m
            ON m.run_id = s.run_id AND m.rollout_id = s.rollout_id AND m.attempt = s.attempt AND m.idx = s.idx
         WHERE s.run_id = :run AND s.rollout_id = :rollout AND s.attempt = :attempt ORDER BY s.idx"""
)
_MARKS = text(
    """SELECT idx, array_agg(reason ORDER BY reason) AS reasons FROM step_marks
        WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt GROUP BY idx"""
)
_TOOL_RUNS = text(
    """SELECT idx, call, name, start_s, end_s, exit_code, bytes FROM tool_calls
        WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt ORDER BY idx, call"""
)


async def step_tree(
    connection: AsyncConnection, key: Mapping[str, Any], reward: Row[Any] | None
) -> list[Step]:
    """The steps of `key`, {run, rollout, attempt}, by index; `reward`: a row of `rewards`, which pays the attempt that it is of."""
    marks = {row.idx: row.reasons for row in await connection.execute(_MARKS, key)}
    runs: dict[int, list[ToolRun]] = {}
    for row in await connection.execute(_TOOL_RUNS, key):
        run = ToolRun(row.call, row.name, row.start_s, row.end_s, row.exit_code, row.bytes)
        runs.setdefault(row.idx, []).append(run)
    paid = reward.per_step if reward is not None and reward.attempt == key["attempt"] else []
    # The n-th entry belongs to the n-th step: `idx` in it is the commit index over the steps that were rewarded.
    rows = (await connection.execute(_STEPS, key)).all()
    return [
        Step(
            row.idx, row.parent_idx, row.kind, row.agent, row.branch_reason, row.branch, row.keep_len, row.state_len, row.full_len,
            row.state_len - row.keep_len, row.full_len - row.state_len,
            [Span(*span) for span in zip(row.spans[::3], row.spans[1::3], row.spans[2::3], strict=True)],
            row.finish, row.parse, marks.get(row.idx, []), [name or "" for name in row.tools], runs.get(row.idx, []),
            row.t_queue, row.t_first, row.t_gen, row.t_gap, row.at, row.epoch,
            _step_rewards(paid[n]) if n < len(paid) else None,
        )
        for n, row in enumerate(rows)
    ]  # fmt: skip


def _step_rewards(paid: Mapping[str, Any]) -> StepRewards:
    return StepRewards(
        paid["reward"], paid["process"], paid["speed"], paid["performance"], paid.get("return_to_go"), paid.get("advantage"),
        paid["weight"], dict(paid.get("signals") or {}),
    )  # fmt: skip
