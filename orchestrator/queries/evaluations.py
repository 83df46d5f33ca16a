"""Held-out success over policy versions: points with 95 % intervals, per suite and domain.

A suite is the label under which evaluation groups were submitted; the version is the pinned one. An attempt at a task is a success when its
performance is 1. Shares and intervals are of the judged rollouts; those without a verdict are counted by reason (`left_out`). If a person
retried a dead group, only its newest try counts. Several tries of one task count in an interval for as much as they tell (`queries.tries`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.ids import EVERY_DOMAIN
from orchestrator.pool.dead_letters import tried_sql
from orchestrator.pool.rows import from_row
from orchestrator.queries.tries import Tallies

Z = 1.959963984540054  # the 97.5 % point of the normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """One suite, version and domain ("all": every domain). `low` and `high`: Wilson's 95 % interval of `success` = successes / n,
    for as many independent tries as the n are worth."""

    suite: str
    version: int
    domain: str
    wanted: int  # rollouts of its groups: judged, without a verdict, or open
    n: int  # judged rollouts
    successes: int  # those with performance 1
    success: float
    low: float
    high: float
    mean: float  # performance, in [0, 1]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rollouts of one domain that ended without a verdict: the failure class, or the reason why their group was filtered."""

    domain: str
    reason: str
    rollouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One suite on one version. `groups` = scored + unscored + open ones; `points` has every domain with a verdict and then "all".
    `left_out`: rollouts that ended without a verdict; those that are neither judged nor left out are open."""

    suite: str
    version: int
    groups: int
    scored: int
    unscored: int  # filtered or dead: without a result
    open: int
    rollouts: int  # wanted: of all groups
    judged: int  # rollouts with a verdict, those behind the shares
    first: datetime  # when the first group was accepted
    last: datetime | None  # when the last group ended; None while one is open
    batch_no: int | None  # the batch that published the version
    train_step: int | None  # the last train step of that batch
    superseded_by: int | None  # the version that a rewind published in its place; None: it counts
    points: list[EvaluationPoint]
    left_out: list[LeftOut]

    @property
    def complete(self) -> bool:
        """Whether every wanted rollout has a verdict."""
        return self.judged == self.rollouts

    @property
    def without_verdict(self) -> dict[str, int]:
        """How many rollouts have no verdict, by reason, most frequent first."""
        counted: dict[str, int] = {}
        for each in self.left_out:
            counted[each.reason] = counted.get(each.reason, 0) + each.rollouts
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def wilson(successes: int, n: int, effective: float | None = None) -> tuple[float, float]:
    """Wilson's 95 % score interval: (low, high), fractions; (0, 1) for n = 0. `effective`: how many independent tries the n are worth.

    >>> [round(x, 3) for x in wilson(52, 200)]
    [0.204, 0.325]
    """
    if n == 0:
        return 0.0, 1.0
    p, worth = successes / n, n if effective is None else effective
    centre = (p + Z**2 / (2 * worth)) / (1 + Z**2 / worth)
    half_width = Z / (1 + Z**2 / worth) * math.sqrt(p * (1 - p) / worth + Z**2 / (4 * worth**2))
    # Exact at the ends, where rounding could exclude the share itself.
    return (max(0.0, centre - half_width) if successes else 0.0), (
        min(1.0, centre + half_width) if successes < n else 1.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationProgress:
    """Progress of an evaluation: as long as it is unchanged, a new count gives the same result. `newest`: its newest group; `ended`: when
    the last of the `done` groups ended; `superseded_by`: the version in its place, once a rewind undid it."""

    suite: str
    version: int
    groups: int
    done: int
    rollouts: int
    newest: int
    ended: datetime | None
    superseded_by: int | None


@dataclass(frozen=True, slots=True)
class Unscored:
    """A reason why groups of one suite and version have no result, with their number."""

    reason: str
    groups: int


_SUPERSEDED = "(select v.superseded_by from policy_versions v where v.run_id = :run and v.version = g.pinned_version) as superseded_by"
# The index groups_eval covers all of the groups.
_STANDS = text(
    f"""select coalesce(label, '') as suite, pinned_version as version, count(*) as groups, count(*) filter (where done) as done,
              sum(size) as rollouts, max(group_id) as newest, max(ended) as ended, {_SUPERSEDED}
         from groups g where run_id = :run and purpose = 'eval' and pinned_version is not null group by 1, 2 order by 1, 2"""
)

_CHOSEN = """(cast(:suite as text) is null or coalesce(label, '') = :suite) and (cast(:version as int) is null or pinned_version = :version)"""
_OPEN, _JUDGED = "open", "judged"
_TALLIES = [field.name for field in fields(Tallies)]
_AMONG = """(coalesce(label, ''), pinned_version) in (select * from unnest(cast(:suites as text[]), cast(:versions as int[])))"""


def _newest(which: str) -> str:
    first = tried_sql("submission")
    return f"""
    with newest as (
      select distinct on (coalesce(label, ''), pinned_version, {first}) *
        from groups
       where run_id = :run and purpose = 'eval' and pinned_version is not null and {which}
       order by coalesce(label, ''), pinned_version, {first}, group_id desc)"""


def _groups(which: str) -> TextClause:
    # A rewind publishes a batch's weights again, at their path, under another version.
    return text(f"""{_newest(which)}
    select coalesce(g.label, '') as suite, g.pinned_version as version, count(*) as groups,
           count(*) filter (where g.state = 'scored') as scored,
           count(*) filter (where g.done and g.state <> 'scored') as unscored,
           count(*) filter (where not g.done) as open,
           sum(g.size) as rollouts, min(g.created) as first,
           case when bool_and(g.done) then max(g.ended) end as last,
           (select v.batch_no from policy_versions v where v.run_id = :run and v.version = g.pinned_version) as batch_no,
           (select max(t.train_step) from policy_versions v
              join batches b on b.run_id = v.run_id and b.batch_no = v.batch_no
              join policy_versions made on made.run_id = b.run_id and made.version = b.version and made.path = v.path
              join train_steps t on t.run_id = b.run_id and t.batch_id = b.batch_id
             where v.run_id = :run and v.version = g.pinned_version) as train_step, {_SUPERSEDED}
      from newest g
     group by 1, 2 order by 1, 2""")


def _results(which: str) -> TextClause:
    return text(f"""{_newest(which)}, counted as (
    select coalesce(g.label, '') as suite, g.pinned_version as version, g.domain,
           case when not g.done then '{_OPEN}' when w.performance is not null then '{_JUDGED}'
                when g.state = 'filtered' and g.reason <> 'too_few' then g.reason::text
                when g.state = 'dead' and r.state <> 'lost' then 'dead'
                else coalesce(r.failure_class::text, g.state::text) end as reason,
           count(*) as n, count(*) filter (where w.performance >= 1) as successes, sum(w.performance) as total
      from newest g
      join rollouts r on r.group_id = g.group_id
      left join lateral (select performance from rewards w where w.rollout_id = r.rollout_id and g.state = 'scored' and r.state = 'verified'
                          order by w.revision desc limit 1) w on true
     group by 1, 2, 3, 4, g.group_id)
    select suite, version, domain, reason, count(*) as groups, sum(n)::bigint as n, sum(successes)::bigint as successes, sum(total) as total,
           sum(successes * successes)::bigint as squares, sum(successes * n)::bigint as products, sum(n * n)::bigint as sizes
      from counted group by 1, 2, 3, 4 order by 1, 2, 3, 4""")


_UNSCORED = text(f"""{_newest(_CHOSEN)}
    select case when g.state = 'dead'
                then 'dead' || coalesce(': ' || (select max(r.failure_class::text) from rollouts r
                                                  where r.group_id = g.group_id and r.state = 'lost'), '')
                else coalesce(g.reason::text, g.state::text) end as reason, count(*) as groups
      from newest g
     where g.done and g.state <> 'scored'
     group by 1 order by 2 desc, 1""")
_QUESTIONS = {which: (_groups(which), _results(which)) for which in (_CHOSEN, _AMONG)}


async def evaluations(
    connection: AsyncConnection, run_id: int, *, suite: str | None = None, version: int | None = None
) -> list[Evaluation]:
    """Every evaluated suite and version, ordered by both; `suite` and `version` filter. Reads each of their rollouts."""
    return await _evaluations(connection, run_id, _CHOSEN, {"suite": suite, "version": version})


async def some_evaluations(
    connection: AsyncConnection, run_id: int, among: Sequence[EvaluationProgress]
) -> list[Evaluation]:
    """Only the given suites and versions, ordered by both: the cost is bounded by their rollouts."""
    parameters = {"suites": [each.suite for each in among], "versions": [each.version for each in among]}
    return await _evaluations(connection, run_id, _AMONG, parameters)


async def unscored(connection: AsyncConnection, run_id: int, suite: str, version: int) -> list[Unscored]:
    """Reasons why groups of one evaluation have no result, most frequent first; for a dead group the class of its last failure."""
    found = await connection.execute(_UNSCORED, {"run": run_id, "suite": suite, "version": version})
    return [from_row(Unscored, row) for row in found]


async def evaluation_progress(connection: AsyncConnection, run_id: int) -> list[EvaluationProgress]:
    """Progress of every evaluation of a run, ordered by suite and version; reads an index only."""
    return [from_row(EvaluationProgress, row) for row in await connection.execute(_STANDS, {"run": run_id})]


async def _evaluations(
    connection: AsyncConnection, run_id: int, which: str, params: Mapping[str, Any]
) -> list[Evaluation]:
    params = {**params, "run": run_id}
    groups, results = _QUESTIONS[which]
    counted: dict[tuple[str, int], list[Any]] = {}
    for row in await connection.execute(results, params):
        counted.setdefault((row.suite, row.version), []).append(row)
    result = []
    for row in await connection.execute(groups, params):
        rows = counted.get((row.suite, row.version), [])
        domains = [*sorted({each.domain for each in rows}), EVERY_DOMAIN]
        result.append(
            from_row(
                Evaluation,
                row,
                judged=sum(each.n for each in rows if each.reason == _JUDGED),
                points=[found for domain in domains if (found := _point(domain, rows))],
                left_out=[
                    LeftOut(each.domain, each.reason, each.n)
                    for each in rows
                    if each.reason not in (_OPEN, _JUDGED)
                ],
            )
        )
    return result


def _point(domain: str, rows: Sequence[Any]) -> EvaluationPoint | None:
    """The point of one domain or of "all" from the counts by domain and reason; None without a verdict."""
    rows = [row for row in rows if domain in (EVERY_DOMAIN, row.domain)]
    judged = [row for row in rows if row.reason == _JUDGED]
    if not judged:
        return None
    tallies = Tallies(**{name: sum(getattr(row, name) for row in judged) for name in _TALLIES})
    n, successes = tallies.n, tallies.successes
    low, high = wilson(successes, n, tallies.effective())
    return EvaluationPoint(
        suite=judged[0].suite,
        version=judged[0].version,
        domain=domain,
        wanted=sum(row.n for row in rows),
        n=n,
        successes=successes,
        success=successes / n,
        low=low,
        high=high,
        mean=sum(float(row.total) for row in judged) / n,
    )
