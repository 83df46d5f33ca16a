"""Success of rollouts and the stages that took their time. A long run is sampled by group, so that the cost does not grow with its length.

One group of every `stride` neighbours in the queue is drawn (`queries.downsample`), whole, so each rollout counts `stride` times. Rollouts of
zero-signal, filtered and dead groups count too, although batches leave them out: a verified rollout by its newest verdict, a lost one among
those left out. Groups that still run are in neither.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from statistics import fmean
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.ids import EVERY_DOMAIN
from orchestrator.queries.downsample import downsample
from orchestrator.queries.tries import spread

SAMPLE = 1600  # rollouts, in groups of the newest one's size
MIN_ROLLOUTS = 8  # rollouts of a bin
LATELY = 64  # rollouts that give the current success
Z = 1.96
UNKNOWN = "unknown"  # the failure class of a lost rollout that has none
UNSPLIT = "agent with its generation"  # of attempts recorded before the two were separated
STAGES = ("generation", "tools and agent", UNSPLIT, "queueing", "sandbox and rest", "verification")


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """Mean performance (0 to 1) of the rollouts of one domain ("all": every domain) judged around `at`; `low`, `high`: 95 % interval from
    the variation of groups, whose members try the same task."""

    domain: str
    at: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    n: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Mean performance of the last `n` judged rollouts, by queue position; `low`, `high`: 95 % interval. `left_out`: rollouts at these
    positions that have no verdict, by failure class."""

    mean: float
    low: float
    high: float
    n: int
    left_out: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of one stage: mean per rollout, over all of its attempts, or per train step (`per`), and the total over the whole run, estimated
    from the sample."""

    stage: str
    per: str
    mean_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """`busy`: concurrent training rollouts, averaged over each stretch of time that ends at `busy_at` (seconds since 1970). `failures`:
    rollouts by failure class, estimated from the sample; `left_out`: those of them without a verdict, which are in no share. `sampled`: how
    many of the run's `rollouts` were read; all if `stride` is 1, else `rollouts` is an estimate too."""

    stride: int
    rollouts: int
    sampled: int
    success: list[Success]
    now: Now | None
    busy_at: list[float]
    busy: list[float]
    failures: dict[str, int]
    left_out: dict[str, int]
    costs: list[Cost]


_NEWEST = text(
    "SELECT seq, size FROM groups WHERE run_id = :run AND seq IS NOT NULL ORDER BY seq DESC LIMIT 1"
)
# A verdict of a group that still runs does not count yet: its fast members would count before its slow ones.
_CONCLUDED = "g.state NOT IN ('accepted', 'dispatched')"
# What a rescore lost keeps its earlier verdicts and rewards.
_VERDICT = f"""LATERAL (SELECT reward AS performance, at FROM verdicts v WHERE v.rollout_id = r.rollout_id AND r.state = 'verified' AND {_CONCLUDED}
                      ORDER BY revision DESC LIMIT 1) v ON true"""
_ROWS = text(
    f"""
    SELECT g.group_id, g.domain, r.rollout_id, r.failure_class, r.state = 'lost' AND {_CONCLUDED} AS lost,
           v.performance, extract(epoch FROM v.at)::float8 AS at,
           (SELECT sum(verify_s) FROM verdicts v WHERE v.rollout_id = r.rollout_id)::float8 AS verify_s
    FROM unnest(cast(:positions AS bigint[])) AS wanted(seq)
    JOIN groups g ON g.run_id = :run AND g.seq = wanted.seq
    JOIN rollouts r ON r.group_id = g.group_id
    LEFT JOIN {_VERDICT}
    ORDER BY r.rollout_id
    """
)
_ATTEMPTS = text(
    """
    SELECT a.rollout_id, extract(epoch FROM a.started)::float8 AS started, extract(epoch FROM a.ended)::float8 AS ended,
           a.agent_s, a.queued_s, a.generation_s, a.waiting_s
    FROM unnest(cast(:rollouts AS bigint[])) AS wanted(rollout_id) JOIN attempts a ON a.rollout_id = wanted.rollout_id
    WHERE a.ended IS NOT NULL
    """
)
_LAST = text(
    f"""
    SELECT g.seq, g.group_id, v.performance FROM groups g JOIN rollouts r ON r.group_id = g.group_id JOIN {_VERDICT}
     WHERE g.run_id = :run AND g.seq IS NOT NULL ORDER BY g.seq DESC LIMIT :n
    """
)
_LOST = text(
    f"""
    SELECT coalesce(r.failure_class::text, '{UNKNOWN}') AS reason, count(*) AS n FROM groups g JOIN rollouts r ON r.group_id = g.group_id
     WHERE g.run_id = :run AND g.seq >= :first AND {_CONCLUDED} AND r.state = 'lost' GROUP BY 1 ORDER BY 2 DESC, 1
    """
)


async def spending(connection: AsyncConnection, run_id: int, *, bins: int = 18) -> Spending:
    """Spending of the training rollouts of a run."""
    newest = (await connection.execute(_NEWEST, {"run": run_id})).first()
    if newest is None:
        return Spending(
            stride=1,
            rollouts=0,
            sampled=0,
            success=[],
            now=None,
            busy_at=[],
            busy=[],
            failures={},
            left_out={},
            costs=[],
        )
    positions, stride = downsample(0, int(newest.seq), max(1, SAMPLE // newest.size))
    rows = (await connection.execute(_ROWS, {"run": run_id, "positions": positions})).all()
    scored = sorted((row for row in rows if row.performance is not None), key=lambda row: float(row.at))
    failed = [row for row in rows if row.failure_class is not None]
    attempts = (await connection.execute(_ATTEMPTS, {"rollouts": [row.rollout_id for row in rows]})).all()
    busy_at, busy = _busy(attempts, stride, bins * 2)
    return Spending(
        stride=stride,
        rollouts=round(len(rows) * (newest.seq + 1) / len(positions)) if positions else 0,
        sampled=len(rows),
        success=_success(scored, bins),
        now=await _now(connection, run_id),
        busy_at=busy_at,
        busy=busy,
        failures=_by_class(failed, stride),
        left_out=_by_class([row for row in rows if row.lost], stride),
        costs=_costs(rows, attempts, stride),
    )


def _success(scored: Sequence[Any], bins: int) -> list[Success]:
    """In bins with equal numbers of rollouts, so that slow stretches are estimated as well as fast ones, and the last bin as well as the
    rest; `scored` is ordered by time."""
    n = max(1, min(bins, len(scored) // MIN_ROLLOUTS))
    parts = [scored[i * len(scored) // n : (i + 1) * len(scored) // n] for i in range(n)]
    found = []
    for domain in (EVERY_DOMAIN, *sorted({row.domain for row in scored})):
        success = Success(domain=domain, at=[], mean=[], low=[], high=[], n=[])
        for part in parts:
            rows = [row for row in part if domain in (EVERY_DOMAIN, row.domain)]
            if not rows:
                continue
            mean, half_width = _interval(rows)
            success.at.append(fmean(float(row.at) for row in part))
            success.mean.append(mean)
            success.low.append(max(0.0, mean - half_width))
            success.high.append(min(1.0, mean + half_width))
            success.n.append(len(rows))
        found.append(success)
    return [success for success in found if success.at]


def _by_class(rows: Sequence[Any], stride: int) -> dict[str, int]:
    """Rollouts by failure class, most frequent first; each stands for `stride`."""
    counted = Counter(row.failure_class or UNKNOWN for row in rows)
    return {failure: n * stride for failure, n in counted.most_common()}


async def _now(connection: AsyncConnection, run_id: int) -> Now | None:
    rows = (await connection.execute(_LAST, {"run": run_id, "n": LATELY})).all()
    if not rows:
        return None
    mean, half_width = _interval(rows)
    first = min(row.seq for row in rows)
    lost = await connection.execute(_LOST, {"run": run_id, "first": first})
    return Now(
        mean=mean,
        low=max(0.0, mean - half_width),
        high=min(1.0, mean + half_width),
        n=len(rows),
        left_out={row.reason: row.n for row in lost},
    )


def _interval(rows: Sequence[Any]) -> tuple[float, float]:
    """Mean performance and half of its 95 % interval. Members of a group tend to be alike, so the variance is taken over groups; if that is
    smaller than the variance over members, over members."""
    mean = fmean(float(row.performance) for row in rows)
    squares = spread([(row.group_id, float(row.performance)) for row in rows], mean)
    return mean, Z * sqrt(squares) / len(rows)


def _busy(attempts: Sequence[Any], stride: int, bins: int) -> tuple[list[float], list[float]]:
    """Mean number of attempts under way in equal stretches of time."""
    spans = [(row.started, row.ended) for row in attempts]
    if not spans:
        return [], []
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    width = (last - first) / bins
    if width <= 0:
        return [], []
    seconds = [0.0] * bins
    for start, end in spans:
        for i in range(int((start - first) / width), min(bins - 1, int((end - first) / width)) + 1):
            seconds[min(i, bins - 1)] += max(
                0.0, min(end, first + (i + 1) * width) - max(start, first + i * width)
            )
    at = list(accumulate([width] * bins, initial=first))[1:]
    return at, [stride * busy_s / width for busy_s in seconds]


def _costs(rows: Sequence[Any], attempts: Sequence[Any], stride: int) -> list[Cost]:
    """Stages of the ended attempts of a rollout, in order, each second of them in one; verification comes after them. Attempts that were tried
    again count, too: they held a slot."""
    if not attempts:
        return []
    spent = dict.fromkeys(STAGES, 0.0)
    for attempt in attempts:
        for stage, seconds in _stages(attempt).items():
            spent[stage] += seconds
    spent["verification"] = sum(row.verify_s or 0.0 for row in rows)
    rollouts = len({attempt.rollout_id for attempt in attempts})
    return [
        Cost(stage=stage, per="rollout", mean_s=spent[stage] / rollouts, total_s=spent[stage] * stride)
        for stage in STAGES
        if spent[stage] or stage != UNSPLIT
    ]


def _stages(row: Any) -> dict[str, float]:
    return stages_of(row.ended - row.started, row.agent_s, row.queued_s, row.generation_s, row.waiting_s)


def stages_of(
    whole: float,
    agent_s: float | None,
    queued_s: float | None,
    generation_s: float | None,
    waiting_s: float | None,
) -> dict[str, float]:
    """Seconds of one attempt by stage; they add up to `whole`, from its start to its end. A black box may work while it waits: that counts
    as work.

    >>> stages_of(10.0, 6.0, 3.0, 4.0, 2.5)
    {'generation': 4.0, 'tools and agent': 2.0, 'queueing': 2.5, 'sandbox and rest': 1.5}
    """
    whole = max(0.0, whole)
    agent = min(whole, float(agent_s or 0.0))
    reported_s = queued_s if waiting_s is None else waiting_s
    waiting = min(whole - agent, float(reported_s or 0.0))
    if generation_s is None:
        inside = {UNSPLIT: agent}
    else:
        generation = min(agent, float(generation_s))
        inside = {"generation": generation, "tools and agent": agent - generation}
    return {**inside, "queueing": waiting, "sandbox and rest": whole - agent - waiting}
