"""Held-out success over policy versions: points with 95 % intervals, per suite and domain.

A suite is the label under which evaluation groups were submitted; the version is the pinned one. An attempt at a task is a success when its
performance is 1. Filtered and dead groups have no result and are counted separately. If a person retried a dead group, only its newest try
counts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.pool.dead_letters import RETRY
from orchestrator.pool.rows import from_row

Z = 1.959963984540054  # the 97.5 % point of the normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """One suite, version and domain ("all": every domain). `low` and `high`: Wilson's 95 % interval of `success` = successes / n."""

    suite: str
    version: int
    domain: str
    n: int  # scored rollouts
    successes: int  # those with performance 1
    success: float
    low: float
    high: float
    mean: float  # performance, in [0, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One suite on one version. `groups` = scored + unscored + open ones; `points` has every domain and then "all"."""

    suite: str
    version: int
    groups: int
    scored: int
    unscored: int  # filtered or dead: without a result
    open: int
    rollouts: int  # of all groups
    first: datetime  # when the first group was accepted
    last: datetime | None  # when the last group ended; None while one is open
    batch_no: int | None  # the batch that published the version
    train_step: int | None  # the last train step of that batch
    points: list[EvaluationPoint]


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval: (low, high), fractions; (0, 1) for n = 0.

    >>> [round(x, 3) for x in wilson(52, 200)]
    [0.204, 0.325]
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half_width = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    # Exact at the ends, where rounding could exclude the share itself.
    return (max(0.0, centre - half_width) if successes else 0.0), (
        min(1.0, centre + half_width) if successes < n else 1.0
    )


def difference(successes: int, n: int, successes_after: int, n_after: int) -> tuple[float, float]:
    """Newcombe's 95 % interval of the difference of two independent shares, after - before (1998, method 10); (-1, 1) if either n is 0.

    >>> [round(x, 3) for x in difference(66, 200, 49, 200)]
    [-0.172, 0.004]
    """
    if not n or not n_after:
        return -1.0, 1.0
    p, q = successes / n, successes_after / n_after
    (low, high), (low_after, high_after) = wilson(successes, n), wilson(successes_after, n_after)
    return q - p - math.hypot(q - low_after, high - p), q - p + math.hypot(high_after - q, p - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationProgress:
    """Progress of an evaluation: as long as it is unchanged, a new count gives the same result. `newest`: its newest group; `ended`: when
    the last of the `done` groups ended."""

    suite: str
    version: int
    groups: int
    done: int
    rollouts: int
    newest: int
    ended: datetime | None


@dataclass(frozen=True, slots=True)
class Unscored:
    """A reason why groups of one suite and version have no result, with their number."""

    reason: str
    groups: int


# The index groups_eval covers all of it.
_STANDS = text(
    """select coalesce(label, '') as suite, pinned_version as version, count(*) as groups, count(*) filter (where done) as done,
              sum(size) as rollouts, max(group_id) as newest, max(ended) as ended
         from groups where run_id = :run and purpose = 'eval' and pinned_version is not null group by 1, 2 order by 1, 2"""
)

_CHOSEN = """(cast(:suite as text) is null or coalesce(label, '') = :suite) and (cast(:version as int) is null or pinned_version = :version)"""
_AMONG = """(coalesce(label, ''), pinned_version) in (select * from unnest(cast(:suites as text[]), cast(:versions as int[])))"""


def _newest(which: str) -> str:
    return f"""
    with newest as (
      select distinct on (coalesce(label, ''), pinned_version, regexp_replace(submission, :retry, '')) *
        from groups
       where run_id = :run and purpose = 'eval' and pinned_version is not null and {which}
       order by coalesce(label, ''), pinned_version, regexp_replace(submission, :retry, ''), group_id desc)"""


def _groups(which: str) -> TextClause:
    return text(f"""{_newest(which)}
    select coalesce(g.label, '') as suite, g.pinned_version as version, count(*) as groups,
           count(*) filter (where g.state = 'scored') as scored,
           count(*) filter (where g.done and g.state <> 'scored') as unscored,
           count(*) filter (where not g.done) as open,
           sum(g.size) as rollouts, min(g.created) as first,
           case when bool_and(g.done) then max(g.ended) end as last,
           (select v.batch_no from policy_versions v where v.run_id = :run and v.version = g.pinned_version) as batch_no,
           (select max(t.train_step) from policy_versions v
              join batches b on b.run_id = v.run_id and b.batch_no = v.batch_no and b.version = v.version
              join train_steps t on t.run_id = b.run_id and t.batch_id = b.batch_id
             where v.run_id = :run and v.version = g.pinned_version) as train_step
      from newest g
     group by 1, 2 order by 1, 2""")


def _results(which: str) -> TextClause:
    return text(f"""{_newest(which)}
    select coalesce(g.label, '') as suite, g.pinned_version as version, g.domain, count(*) as n,
           count(*) filter (where w.performance >= 1) as successes, avg(w.performance) as mean
      from newest g
      join rollouts r on r.group_id = g.group_id
      join lateral (select performance from rewards w where w.rollout_id = r.rollout_id order by w.revision desc limit 1) w on true
     where g.state = 'scored'
     group by 1, 2, 3 order by 1, 2, 3""")


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
    found = await connection.execute(
        _UNSCORED, {"run": run_id, "suite": suite, "version": version, "retry": RETRY}
    )
    return [from_row(Unscored, row) for row in found]


async def evaluation_progress(connection: AsyncConnection, run_id: int) -> list[EvaluationProgress]:
    """Progress of every evaluation of a run, ordered by suite and version; reads an index only."""
    return [from_row(EvaluationProgress, row) for row in await connection.execute(_STANDS, {"run": run_id})]


async def _evaluations(
    connection: AsyncConnection, run_id: int, which: str, params: Mapping[str, Any]
) -> list[Evaluation]:
    params = {**params, "run": run_id, "retry": RETRY}
    groups, results = _QUESTIONS[which]
    points: dict[tuple[str, int], list[EvaluationPoint]] = {}
    for row in await connection.execute(results, params):
        found = points.setdefault((row.suite, row.version), [])
        found.append(point(row.suite, row.version, row.domain, row.n, row.successes, float(row.mean)))
    result = []
    for row in await connection.execute(groups, params):
        of_domains = points.get((row.suite, row.version), [])
        n = sum(each.n for each in of_domains)
        if n:
            mean = sum(each.mean * each.n for each in of_domains) / n
            of_domains.append(
                point(row.suite, row.version, "all", n, sum(each.successes for each in of_domains), mean)
            )
        result.append(from_row(Evaluation, row, points=of_domains))
    return result


def point(suite: str, version: int, domain: str, n: int, successes: int, mean: float) -> EvaluationPoint:
    """A point with its interval."""
    low, high = wilson(successes, n)
    return EvaluationPoint(
        suite=suite,
        version=version,
        domain=domain,
        n=n,
        successes=successes,
        success=successes / n,
        low=low,
        high=high,
        mean=mean,
    )
