"""Live events of a run: state changes and recorded steps, each delivered once, by keys and never by counting.

A transition gets its id before its commit, so a lower id may appear after a higher one. Transitions younger than OVERLAP_S are therefore
read again, and delivered ones are remembered. "Younger" is by the newest transition of any run, so that a look reads no more of other runs' than of
that time. Steps have no order across a run: for every rollout that may still get steps, the steps after
the last delivered one are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.states import Entity, RolloutState
from orchestrator.pool.rows import from_wide_row, member

OVERLAP_S = 10.0
PAGE = 2_000
STEPS = 200  # of one rollout at a time
TEXT_CHARS = 200  # characters of a step's text


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """A state change. `at`: seconds since 1970; `what`: group | rollout | batch | run | message."""

    at: float
    what: Entity
    entity_id: int
    seq: int | None
    before: str | None
    after: str
    epoch: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A recorded step. `text`: the beginning of its content, else of its reasoning; `calls`: its tool calls, in short."""

    at: float
    rollout_id: int
    attempt: int
    idx: int
    agent: str
    version: int
    tokens: int
    finish: Finish
    parse: ParseStatus
    text: str
    calls: list[str]


@dataclass(frozen=True, slots=True)
class Only:
    """Which changes: all, or those of one group and its rollouts, or of one rollout."""

    group: int | None = None
    rollout: int | None = None
    steps: bool = True


@dataclass(slots=True, kw_only=True)
class Changes:
    """`more` returns the events since the last call; the first call returns the newest `back` state changes."""

    run_id: int
    only: Only = Only()
    back: int = 20
    _floor: int = 0
    _delivered: frozenset[int] = frozenset()
    _steps: dict[tuple[int, int], int] = field(default_factory=dict)
    _rollouts: list[int] | None = None
    _started: bool = False

    async def more(self, connection: AsyncConnection) -> list[StateChange | StepRecord]:
        """Ordered by time. Raises NotFoundError if the run lacks the wanted group or rollout. An error loses no event: the next call
        returns it."""
        before = self._floor, self._delivered, dict(self._steps), self._started
        try:
            return await self._more(connection)
        except BaseException:
            self._floor, self._delivered, self._steps, self._started = before
            raise

    async def _more(self, connection: AsyncConnection) -> list[StateChange | StepRecord]:
        first = not self._started
        if first:
            await self._choose(connection)
            self._started = True
        changes = await self._transitions(connection, first=first)
        found: list[StateChange | StepRecord] = [*changes]
        if self.only.steps:
            # Also of attempts that started and ended between two calls.
            ended = [
                each.entity_id
                for each in changes
                if each.what == Entity.ROLLOUT and each.after == RolloutState.REPORTED
            ]
            found += await self._recorded(connection, [] if first else ended, deliver=not first)
        return sorted(found, key=lambda each: each.at)

    async def _choose(self, connection: AsyncConnection) -> None:
        if self.only.rollout is not None:
            query, given, entity = _ONE, self.only.rollout, Entity.ROLLOUT
        elif self.only.group is not None:
            query, given, entity = _MEMBERS, self.only.group, Entity.GROUP
        else:
            return
        rows = await connection.scalars(query, {"run": self.run_id, "id": given})
        self._rollouts = list(rows.all())
        if not self._rollouts:
            raise NotFoundError(f"{entity} {given} does not exist in this run")

    async def _transitions(self, connection: AsyncConnection, *, first: bool) -> list[StateChange]:
        given: dict[str, Any] = {
            "run": self.run_id,
            "group": None if self.only.rollout is not None else self.only.group,
            "rollouts": self._rollouts,
        }
        if first:
            last = await connection.scalar(_LAST)
            rows = (await connection.execute(_NEWEST, {**given, "n": self.back})).all()[::-1]
            # Before the overlap nothing is missing: transitions within it count as delivered and are not read.
            recent = (await connection.execute(_WITHIN, {"last": last or 0, "overlap": OVERLAP_S})).all()
            self._delivered = frozenset(row.transition_id for row in recent)
            self._floor = min(self._delivered, default=(last or 0) + 1) - 1
            return [_change(row) for row in rows]
        # Before the read: what is settled now is in it.
        settled = await connection.scalar(_SETTLED, {"floor": self._floor, "overlap": OVERLAP_S})
        page = PAGE + len(self._delivered)
        rows = (await connection.execute(_SINCE, {**given, "floor": self._floor, "n": page})).all()
        fresh = [row for row in rows if row.transition_id not in self._delivered]
        delivered = self._delivered | {row.transition_id for row in fresh}
        if settled is not None:
            self._floor = settled if len(rows) < page else min(settled, rows[-1].transition_id)
            delivered = frozenset(number for number in delivered if number > self._floor)
        self._delivered = delivered
        return [_change(row) for row in fresh]

    async def _recorded(
        self, connection: AsyncConnection, ended: list[int], *, deliver: bool
    ) -> list[StepRecord]:
        """New steps of rollouts that may still get some, and a last time of those that could at the previous call."""
        given = {"run": self.run_id, "rollouts": self._rollouts, "ended": ended}
        open_now = {(row.rollout_id, row.attempt) for row in await connection.execute(_OPEN, given)}
        wanted = sorted(open_now | self._steps.keys())
        after = [self._steps.get(key, -1) for key in wanted]
        if not wanted:
            return []
        keys = {
            "run": self.run_id,
            "ids": [rollout_id for rollout_id, _ in wanted],
            "attempts": [attempt for _, attempt in wanted],
            "after": after,
        }
        if not deliver:
            newest = await connection.execute(_NEWEST_STEPS, keys)
            self._steps = {(row.rollout_id, row.attempt): row.idx for row in newest}
            return []
        found = []
        for row in await connection.execute(_STEPS, {**keys, "n": STEPS, "text_chars": TEXT_CHARS}):
            key = row.rollout_id, row.attempt
            # A step that overtook another is delivered in its turn.
            if row.idx == self._steps.get(key, -1) + 1:
                self._steps[key] = row.idx
                found.append(_record(row))
        delivered = {(each.rollout_id, each.attempt) for each in found}
        self._steps = {key: idx for key, idx in self._steps.items() if key in open_now or key in delivered}
        for key in open_now:
            self._steps.setdefault(key, -1)
        return found


def _change(row: Any) -> StateChange:
    return from_wide_row(
        StateChange, row, what=member(Entity, row.kind), before=row.from_state, after=row.to_state
    )


def _record(row: Any) -> StepRecord:
    calls = [
        f"{call.get('name', '?')}({str(call.get('arguments', ''))[:TEXT_CHARS]})"
        for call in (row.calls if isinstance(row.calls, Sequence) else ())
        if isinstance(call, dict)
    ]
    beginning = row.content or row.reasoning or ""
    return from_wide_row(StepRecord, row, version=row.v_hi, text=beginning, calls=calls[:8])


_COLUMNS = "transition_id, extract(epoch FROM at)::float8 AS at, kind, entity_id, seq, from_state, to_state, epoch, reason"
_CHOSEN = """(CAST(:rollouts AS bigint[]) IS NULL
              OR kind = 'rollout' AND entity_id = ANY(CAST(:rollouts AS bigint[])) OR kind = 'group' AND entity_id = CAST(:group AS bigint))"""
_LAST = text("SELECT max(transition_id) FROM transitions")
_NEWEST = text(  # none is older than the run's own first
    f"""SELECT {_COLUMNS} FROM transitions
         WHERE run_id = :run AND {_CHOSEN}
           AND transition_id >= coalesce((SELECT min(transition_id) FROM transitions WHERE kind = 'run' AND entity_id = :run), 0)
         ORDER BY transition_id DESC LIMIT :n"""
)
_SETTLED = text(
    """SELECT transition_id FROM transitions
        WHERE transition_id > :floor
          AND at < (SELECT at FROM transitions ORDER BY transition_id DESC LIMIT 1) - make_interval(secs => :overlap)
        ORDER BY transition_id DESC LIMIT 1"""
)
_SINCE = text(
    f"SELECT {_COLUMNS} FROM transitions WHERE transition_id > :floor AND run_id = :run AND {_CHOSEN} ORDER BY transition_id LIMIT :n"
)
_WITHIN = text(
    """SELECT transition_id FROM transitions
        WHERE transition_id > :last - 10000 AND at > clock_timestamp() - make_interval(secs => :overlap)"""
)
_ONE = text("SELECT rollout_id FROM rollouts WHERE run_id = :run AND rollout_id = :id")
_MEMBERS = text("SELECT rollout_id FROM rollouts WHERE run_id = :run AND group_id = :id")
_OPEN = text(
    """SELECT rollout_id, attempt FROM rollouts
        WHERE run_id = :run AND state NOT IN ('verified', 'lost') AND state IN ('running', 'reported')
          AND (CAST(:rollouts AS bigint[]) IS NULL OR rollout_id = ANY(CAST(:rollouts AS bigint[])))
       UNION SELECT rollout_id, attempt FROM rollouts WHERE rollout_id = ANY(CAST(:ended AS bigint[]))"""
)
_KEYS = "unnest(CAST(:ids AS bigint[]), CAST(:attempts AS smallint[]), CAST(:after AS integer[])) AS k(rollout_id, attempt, after)"
_NEWEST_STEPS = text(
    f"""SELECT k.rollout_id, k.attempt, coalesce(s.idx, -1) AS idx FROM {_KEYS}
        LEFT JOIN LATERAL (SELECT idx FROM steps
          WHERE run_id = :run AND rollout_id = k.rollout_id AND attempt = k.attempt ORDER BY idx DESC LIMIT 1) s ON true"""
)
_STEPS = text(
    f"""SELECT s.*, left(m.reply ->> 'content', :text_chars) AS content, left(m.reply ->> 'reasoning', :text_chars) AS reasoning,
               m.reply -> 'tool_calls' AS calls
          FROM {_KEYS}
          JOIN LATERAL (
            SELECT rollout_id, attempt, idx, agent, v_hi, full_len - state_len AS tokens, finish, parse, extract(epoch FROM at)::float8 AS at
              FROM steps WHERE run_id = :run AND rollout_id = k.rollout_id AND attempt = k.attempt AND idx > k.after ORDER BY idx LIMIT :n) s ON true
          LEFT JOIN messages m ON m.run_id = :run AND m.rollout_id = s.rollout_id AND m.attempt = s.attempt AND m.idx = s.idx
         ORDER BY s.rollout_id, s.attempt, s.idx"""
)
_NEWEST_IDS = text(
    """SELECT coalesce((SELECT max(transition_id) FROM transitions), 0),
              coalesce((SELECT max(action_id) FROM actions), 0),
              coalesce((SELECT max(dead_letter_id) FROM dead_letters), 0)"""
)


async def newest_ids(connection: AsyncConnection) -> tuple[int, ...]:
    """The newest transition, action and dead letter of the database, 0 if none exists: while they stay the same, nothing has changed."""
    return tuple((await connection.execute(_NEWEST_IDS)).one())
