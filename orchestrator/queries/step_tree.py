"""The steps of an attempt as a tree, with their waits, tools and rewards. Their texts are in `queries.steps`, their tokens in
`queries.tokens`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import from_flat
from orchestrator.contracts.states import StepKind
from orchestrator.pool.rows import from_wide_row
from orchestrator.queries.timeline import seconds_of


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """`version` sampled the action tokens start … end − 1."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRewards:
    """The rewards of one step, and the values of its sample. `signals`: process signals by name, None if a function gave no value. `weight`
    0: it does not train."""

    reward: float
    process: float
    speed: float
    performance: float
    return_to_go: float | None
    advantage: float | None
    weight: float
    signals: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """One tool execution; seconds since the attempt's start, bytes of output."""

    call: int
    name: str
    start: float | None
    end: float | None
    exit_code: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeStep:
    """One completion without its texts. `added`: tokens that its request added; `action`: tokens that were sampled; `tools`: names of the
    tools it called; for logprobs see `queries.tokens`."""

    idx: int
    parent: int | None
    kind: StepKind
    agent: str
    branch_reason: str | None
    branch: dict[str, Any] | None
    keep_len: int
    state_len: int
    full_len: int
    added: int
    action: int
    spans: list[TokenSpan]
    finish: Finish
    parse: ParseStatus
    marks: list[str]
    tools: list[str]
    tool_runs: list[ToolRun]
    t_queue: float
    t_first: float
    t_gen: float
    t_gap: float
    at: float
    ended: float | None
    epoch: int
    rewards: StepRewards | None


_STEPS = text(
    f"""SELECT s.idx, s.parent_idx, s.kind, s.agent, s.branch_reason, s.branch, s.keep_len, s.state_len, s.full_len, s.spans, s.finish,
               s.parse, coalesce(s.t_queue, 0)::float8 AS t_queue, coalesce(s.t_first, 0)::float8 AS t_first,
               coalesce(s.t_gen, 0)::float8 AS t_gen, coalesce(s.t_gap, 0)::float8 AS t_gap, {seconds_of("s.at", "s.ended")}, s.epoch,
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
) -> list[TreeStep]:
    """The steps of `key`, {run, rollout, attempt}, by index; `reward`: a row of `rewards`, used if it is for this attempt."""
    marks = {row.idx: row.reasons for row in await connection.execute(_MARKS, key)}
    runs: dict[int, list[ToolRun]] = {}
    for row in await connection.execute(_TOOL_RUNS, key):
        run = from_wide_row(ToolRun, row, start=row.start_s, end=row.end_s)
        runs.setdefault(row.idx, []).append(run)
    per_step = reward.per_step if reward is not None and reward.attempt == key["attempt"] else []
    # The n-th entry belongs to the n-th step: its `idx` is the commit index over the rewarded steps.
    rows = (await connection.execute(_STEPS, key)).all()
    return [
        from_wide_row(
            TreeStep,
            row,
            parent=row.parent_idx,
            added=row.state_len - row.keep_len,
            action=row.full_len - row.state_len,
            spans=[TokenSpan(*span) for span in from_flat(row.spans)],
            marks=marks.get(row.idx, []),
            tools=[name or "" for name in row.tools],
            tool_runs=runs.get(row.idx, []),
            rewards=_step_rewards(per_step[n]) if n < len(per_step) else None,
        )
        for n, row in enumerate(rows)
    ]


def _step_rewards(paid: Mapping[str, Any]) -> StepRewards:
    return StepRewards(
        reward=paid["reward"],
        process=paid["process"],
        speed=paid["speed"],
        performance=paid["performance"],
        return_to_go=paid.get("return_to_go"),
        advantage=paid.get("advantage"),
        weight=paid["weight"],
        signals=dict(paid.get("signals") or {}),
    )
