"""Search of rollouts and groups: filters, text, newest first, page by page.

There is not an index for every query, and no full-text index at all: one over the messages would be written at every step
(ops/decisions/0015 gives its cost). A search scans rollouts from the newest to the oldest, `CHUNK` at a time, until its page is full or
`BUDGET_S` is spent. `next` gives the place to continue from. An empty page does not prove that nothing matches.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.languages import json_text, like
from orchestrator.contracts.states import GroupState, Purpose
from orchestrator.pool.rows import from_row
from orchestrator.queries.filters import GroupFilters, RolloutFilters
from orchestrator.queries.latest_reward import reward_of
from orchestrator.queries.rollout_summary import PRUNED, RolloutSummary, steps_of

PAGE = 50
MAX_PAGE = 200
CHUNK = 2_000
TEXT_CHUNK = 25  # rollouts whose messages are read in the first chunk
BUDGET_S = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow(RolloutSummary):
    """A rollout in a list. `found`: where the searched text occurs, with the characters around it."""

    group_id: int
    seq: int | None
    task: str
    domain: str
    scaffold: str
    purpose: Purpose
    performance: float | None
    total: float | None
    advantage: float | None
    agent_s: float | None
    batch_no: int | None
    staleness: int | None
    changed: float
    found: "Found | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`before` + `text` + `after` occurs in step `idx`."""

    idx: int
    before: str
    text: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPage:
    """`next`: pass it as `before` to continue; None: the search reached the oldest rollout. `searched`: rollouts scanned for this page.
    `pruned`: the run has no steps and messages any more, in which a filter could find something."""

    rollouts: list[RolloutRow]
    next: int | None
    searched: int
    pruned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group in a list; rewards of its members that count. `judged`: how many of its `size` members these are of."""

    group_id: int
    seq: int | None
    task: str
    domain: str
    scaffold: str
    purpose: Purpose
    state: GroupState
    reason: str | None
    size: int
    done: int
    judged: int
    reward: float | None
    lowest: float | None
    highest: float | None
    batch_no: int | None
    created: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """`next` and `searched` as in RolloutPage."""

    groups: list[GroupRow]
    next: int | None
    searched: int


_CANDIDATES = """
  SELECT r.*, row_number() OVER (ORDER BY r.rollout_id DESC) AS nth FROM rollouts r
   WHERE r.run_id = :run AND r.rollout_id < :before ORDER BY r.rollout_id DESC LIMIT :chunk
"""
_REWARD = reward_of("c")
_BATCH = (
    # Joined by the group: a group is in at most one batch that is not voided, while a rollout's row stays with voided batches as well.
    "LEFT JOIN LATERAL (SELECT b.batch_no, p.parent FROM batch_items i JOIN batches b ON b.batch_id = i.batch_id "
    "JOIN batch_rollouts br ON br.batch_id = i.batch_id AND br.rollout_id = c.rollout_id "
    "LEFT JOIN policy_versions p ON p.run_id = b.run_id AND p.version = b.version WHERE i.group_id = c.group_id AND NOT i.voided) b ON true"
)
_STEPS = steps_of("c")
_CONDITIONS = {
    "state": "c.state = :state",
    "failure_class": "c.failure_class = :failure_class",
    "group_id": "c.group_id = :group_id",
    "purpose": "g.purpose = :purpose",
    "domain": "g.domain = :domain",
    "scaffold": "g.scaffold = :scaffold",
    "task": "strpos(lower(t.name), lower(:task)) > 0",
    "reward_min": "w.total >= :reward_min",
    "reward_max": "w.total <= :reward_max",
    "steps_min": "s.steps >= :steps_min",
    "steps_max": "s.steps <= :steps_max",
    "length_min": "s.longest >= :length_min",
    "length_max": "s.longest <= :length_max",
    "version": ":version BETWEEN s.v_lo AND s.v_hi",
    "staleness_min": "b.parent - s.v_lo >= :staleness_min",
    "tool": (
        "EXISTS (SELECT FROM messages m WHERE m.run_id = :run AND m.rollout_id = c.rollout_id AND m.attempt = c.attempt "
        "AND m.reply -> 'tool_calls' @> jsonb_build_array(jsonb_build_object('name', CAST(:tool AS text))))"
    ),
    # The pattern is escaped like JSON text: quotes, backslashes and control characters.
    "text": (
        "EXISTS (SELECT FROM messages m WHERE m.run_id = :run AND m.rollout_id = c.rollout_id AND m.attempt = c.attempt "
        "AND (m.reply::text ILIKE :text OR m.appended::text ILIKE :text))"
    ),
}


async def rollout_list(
    connection: AsyncConnection,
    run_id: int,
    filters: RolloutFilters | None = None,
    *,
    before: int | None = None,
    n: int = PAGE,
    budget_s: float = BUDGET_S,
) -> RolloutPage:
    """The newest `n` rollouts below id `before` that match, or fewer if the time budget is spent (see this module)."""
    filters = filters or RolloutFilters()
    n = max(1, min(n, MAX_PAGE))
    given = {f.name: getattr(filters, f.name) for f in fields(filters)}
    given = {name: value for name, value in given.items() if value is not None}
    chunk = TEXT_CHUNK if {"text", "tool"} & given.keys() else CHUNK if given else n
    statement = text(_statement(given))
    if filters.text is not None:
        given["text"] = _pattern(filters.text)
    parameters = {**given, "run": run_id}
    deadline = time.monotonic() + budget_s
    rows: list[Any] = []
    searched = 0
    following: int | None = 2**62 if before is None else before
    while following is not None and len(rows) < n:
        chunk_started = time.monotonic()
        parameters |= {"before": following, "chunk": chunk, "n": n - len(rows)}
        edge = (await connection.execute(_EDGE, parameters)).one()
        found = (await connection.execute(statement, parameters)).all() if edge.found else []
        rows += found
        full = len(rows) >= n
        searched += found[-1].nth if full else edge.found
        following = found[-1].rollout_id if full else edge.last if edge.found == chunk else None
        left = deadline - time.monotonic()
        if left <= 0:
            break
        # As many as the remaining time allows, judging by the chunks before.
        chunk = min(CHUNK, max(chunk, int(left / (time.monotonic() - chunk_started) * chunk)))
    listed = [_row(row) for row in rows]
    if filters.text is not None:
        listed = [await _with_place(connection, run_id, row, filters.text) for row in listed]
    pruned = bool(await connection.scalar(text(f"SELECT {PRUNED}"), {"run": run_id}))
    return RolloutPage(rollouts=listed, next=following, searched=searched, pruned=pruned)


_EDGE = text(f"SELECT min(rollout_id) AS last, count(*) AS found FROM ({_CANDIDATES}) c")


def _statement(given: Mapping[str, Any]) -> str:
    """First select the matching rows, joining only what the filters need; then add the columns of the list."""
    conditions = " AND ".join(_CONDITIONS[name] for name in given) or "true"
    joins = " ".join(
        join for letter, join in (("w.", _REWARD), ("s.", _STEPS), ("b.", _BATCH)) if letter in conditions
    )
    return f"""WITH c AS MATERIALIZED ({_CANDIDATES}),
      f AS MATERIALIZED (
        SELECT c.*, g.seq, t.name AS task, g.domain, g.scaffold, g.purpose
          FROM c JOIN groups g ON g.group_id = c.group_id JOIN tasks t ON t.task_id = g.task_id {joins}
         WHERE {conditions} ORDER BY c.rollout_id DESC LIMIT :n)
      SELECT c.rollout_id, c.group_id, c.seq, c.member, c.task, c.domain, c.scaffold, c.purpose, c.state, c.failure_class, c.reason,
             c.attempt, s.steps, s.action_tokens, s.longest, s.v_lo, s.v_hi, w.performance, w.total, w.advantage,
             (SELECT a.agent_s FROM attempts a WHERE a.rollout_id = c.rollout_id AND a.attempt = c.attempt) AS agent_s,
             b.batch_no, b.parent - s.v_lo AS staleness, extract(epoch FROM c.changed)::float8 AS changed, c.nth
        FROM f c {_REWARD} {_STEPS} {_BATCH} ORDER BY c.rollout_id DESC"""


def _row(row: Any) -> RolloutRow:
    return from_row(RolloutRow, row, without=("nth",))


def _pattern(wanted: str) -> str:
    """An ILIKE pattern that finds `wanted` in the JSON text of messages."""
    return f"%{like(json_text(wanted)[1:-1])}%"


_PLACE = text(
    """SELECT idx, appended, reply FROM messages
        WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt AND (reply::text ILIKE :text OR appended::text ILIKE :text)
        ORDER BY idx LIMIT 1"""
)
AROUND = 80  # characters on each side of the match


async def _with_place(connection: AsyncConnection, run_id: int, row: RolloutRow, wanted: str) -> RolloutRow:
    key = {"run": run_id, "rollout": row.rollout_id, "attempt": row.attempt, "text": _pattern(wanted)}
    stored = (await connection.execute(_PLACE, key)).first()
    found = None if stored is None else _found(stored.idx, [stored.reply, stored.appended], wanted)
    return replace(row, found=found)


def _found(idx: int, value: Any, wanted: str) -> Found:
    """The first string in a JSON value that contains `wanted`; if none does, `wanted` alone."""
    for string in _strings(value):
        at = string.lower().find(wanted.lower())
        if at >= 0:
            end = at + len(wanted)
            return Found(
                idx=idx,
                before=string[max(0, at - AROUND) : at],
                text=string[at:end],
                after=string[end : end + AROUND],
            )
    return Found(idx=idx, before="", text=wanted, after="")


def _strings(value: Any) -> list[str]:
    """Every string in a JSON value, including keys: the JSON text contains them all."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in (*_strings(item), str(key))]
    if isinstance(value, list):
        return [found for item in value for found in _strings(item)]
    return []


_GROUP_CONDITIONS = {
    "state": "g.state = :state",
    "purpose": "g.purpose = :purpose",
    "domain": "g.domain = :domain",
    "scaffold": "g.scaffold = :scaffold",
    "reason": "g.reason = :reason",
    "task": "strpos(lower(t.name), lower(:task)) > 0",
}


async def group_list(
    connection: AsyncConnection,
    run_id: int,
    filters: GroupFilters | None = None,
    *,
    before: int | None = None,
    n: int = PAGE,
) -> GroupPage:
    """The newest `n` groups below id `before` that match, or fewer if the time budget is spent."""
    given = {
        f.name: value for f in fields(GroupFilters) if (value := getattr(filters, f.name, None)) is not None
    }
    n = max(1, min(n, MAX_PAGE))
    chunk = CHUNK if given else n
    conditions = " AND ".join(_GROUP_CONDITIONS[name] for name in given) or "true"
    candidates = """SELECT g.*, row_number() OVER (ORDER BY g.group_id DESC) AS nth FROM groups g
                     WHERE g.run_id = :run AND g.group_id < :before ORDER BY g.group_id DESC LIMIT :chunk"""
    statement = text(
        f"""WITH g AS MATERIALIZED ({candidates}),
            f AS MATERIALIZED (SELECT g.*, t.name AS task FROM g JOIN tasks t ON t.task_id = g.task_id WHERE {conditions}
                                ORDER BY g.group_id DESC LIMIT :n)
            SELECT f.group_id, f.seq, f.task, f.domain, f.scaffold, f.purpose, f.state, f.reason, f.size, r.done, r.judged, r.reward, r.lowest,
                   r.highest, b.batch_no, extract(epoch FROM f.created)::float8 AS created, extract(epoch FROM f.ended)::float8 AS ended, f.nth
              FROM f
              LEFT JOIN LATERAL (SELECT count(*) FILTER (WHERE r.state IN ('verified', 'lost')) AS done,
                                        count(w.total) AS judged, avg(w.total) AS reward,
                                        min(w.total) AS lowest, max(w.total) AS highest
                                   FROM rollouts r {reward_of("r")}
                                  WHERE r.group_id = f.group_id) r ON true
              LEFT JOIN (batch_items i JOIN batches b ON b.batch_id = i.batch_id) ON i.group_id = f.group_id AND NOT i.voided
             ORDER BY f.group_id DESC"""
    )
    edge_of = text(f"SELECT min(group_id) AS last, count(*) AS found FROM ({candidates}) c")
    deadline = time.monotonic() + BUDGET_S
    rows: list[GroupRow] = []
    following: int | None = 2**62 if before is None else before
    searched = 0
    while following is not None and len(rows) < n:
        parameters = {"run": run_id, "before": following, "chunk": chunk}
        edge = (await connection.execute(edge_of, parameters)).one()
        found = (await connection.execute(statement, {**given, **parameters, "n": n - len(rows)})).all()
        rows += [from_row(GroupRow, row, without=("nth",)) for row in found]
        full = len(rows) >= n
        searched += found[-1].nth if full else edge.found
        following = found[-1].group_id if full else edge.last if edge.found == chunk else None
        if time.monotonic() > deadline:
            break
    return GroupPage(rows, following, searched)
