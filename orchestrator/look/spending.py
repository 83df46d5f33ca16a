"""What rollouts achieved and where their time went, of a long run from a sample of groups: asking costs the same however long the run is.

One group of every `stride` neighbours in the queue is drawn (`look.sample`), whole, so each rollout counts `stride` times. Rollouts of zero-signal
groups count too, which batches leave out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import sqrt
from operator import itemgetter
from statistics import fmean
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.look.sample import sampled

SAMPLE = 1600  # rollouts, in groups of the newest one's size
BLOCKS, TOGETHER = (
    12,
    8,
)  # rollouts whose steps are read: so many neighbours at so many places, since steps that lie apart are a read each
LEAST = 8  # rollouts of a bin
LATELY = 64  # rollouts that say how it stands now
Z = 1.96


@dataclass(frozen=True, slots=True)
class Success:
    """Mean performance (0 to 1) of the rollouts of one domain ("all": every one) whose rewards came around `at`; `low`, `high`: 95 %, as groups
    vary, whose members try the same task."""

    domain: str
    at: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    n: list[int]


@dataclass(frozen=True, slots=True)
class Now:
    """Mean performance of the last `n` rollouts that were rewarded, by queue position; `low`, `high`: 95 %."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one stage, per rollout or per train step (`per`), and times `count` over the whole run, estimated from the sample."""

    stage: str
    per: str
    mean_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Spending:
    """`busy`: training rollouts that ran at once, averaged over each stretch of time that ends at `busy_at` (seconds since 1970). `failures`:
    rollouts by failure class, estimated from the sample. `sampled`: how many of the `rollouts` of the run were looked at; where `stride` is 1 all,
    else `rollouts` is an estimate too."""

    stride: int
    rollouts: int
    sampled: int
    success: list[Success]
    now: Now | None
    busy_at: list[float]
    busy: list[float]
    failures: dict[str, int]
    costs: list[Cost]


_NEWEST = text(
    "SELECT seq, size FROM groups WHERE run_id = :run AND seq IS NOT NULL ORDER BY seq DESC LIMIT 1"
)
_ROWS = text(
    """
    SELECT g.group_id, g.domain, r.rollout_id, r.attempt, r.failure_class, extract(epoch FROM a.started)::float8 AS started,
           extract(epoch FROM a.ended)::float8 AS ended, a.agent_s, a.queued_s, w.performance, extract(epoch FROM w.at)::float8 AS at, v.verify_s
    FROM unnest(cast(:positions AS bigint[])) AS wanted(seq)
    JOIN groups g ON g.run_id = :run AND g.seq = wanted.seq
    JOIN rollouts r ON r.group_id = g.group_id
    LEFT JOIN attempts a ON a.rollout_id = r.rollout_id AND a.attempt = r.attempt
    LEFT JOIN LATERAL (SELECT performance, at FROM rewards w WHERE w.rollout_id = r.rollout_id ORDER BY revision DESC LIMIT 1) w ON true
    LEFT JOIN LATERAL (SELECT verify_s FROM verdicts v WHERE v.rollout_id = r.rollout_id ORDER BY revision DESC LIMIT 1) v ON true
    ORDER BY r.rollout_id
    """
)
_LAST = text(
    """
    SELECT g.group_id, w.performance FROM groups g JOIN rollouts r ON r.group_id = g.group_id
      JOIN LATERAL (SELECT performance FROM rewards w WHERE w.rollout_id = r.rollout_id ORDER BY revision DESC LIMIT 1) w ON true
     WHERE g.run_id = :run AND g.seq IS NOT NULL ORDER BY g.seq DESC LIMIT :n
    """
)
_GENERATION = text(
    """
    SELECT sum(s.t_gen)::float8 AS generated, sum(s.t_queue)::float8 AS queued
    FROM unnest(cast(:rollouts AS bigint[]), cast(:attempts AS int[])) AS o(rollout_id, attempt)
    JOIN steps s ON s.run_id = :run AND s.rollout_id = o.rollout_id AND s.attempt = o.attempt
    """
)


async def spending(connection: AsyncConnection, run_id: int, *, bins: int = 18) -> Spending:
    """Of the training rollouts of a run."""
    newest = (await connection.execute(_NEWEST, {"run": run_id})).first()
    if newest is None:
        return Spending(1, 0, 0, [], None, [], [], {}, [])
    positions, stride = sampled(0, int(newest.seq), max(1, SAMPLE // newest.size))
    rows = (await connection.execute(_ROWS, {"run": run_id, "positions": positions})).all()
    scored = sorted((row for row in rows if row.performance is not None), key=lambda row: float(row.at))
    failures: dict[str, int] = {}
    for row in rows:
        if row.failure_class is not None:
            failures[row.failure_class] = failures.get(row.failure_class, 0) + stride
    busy_at, busy = _busy(rows, stride, bins * 2)
    over = [row for row in rows if row.ended is not None]
    blocks, _ = sampled(0, (len(over) - 1) // TOGETHER, BLOCKS)
    some = [row for i in blocks for row in over[i * TOGETHER : (i + 1) * TOGETHER]]
    generated = (
        await connection.execute(
            _GENERATION,
            {
                "run": run_id,
                "rollouts": [row.rollout_id for row in some],
                "attempts": [row.attempt for row in some],
            },
        )
    ).one()
    return Spending(
        stride,
        round(len(rows) * (newest.seq + 1) / len(positions)) if positions else 0,
        len(rows),
        _success(scored, bins),
        _now((await connection.execute(_LAST, {"run": run_id, "n": LATELY})).all()),
        busy_at,
        busy,
        dict(sorted(failures.items(), key=lambda item: -item[1])),
        _costs(over, (generated.generated or 0.0) / max(1, len(some)), stride),
    )


def _success(scored: Sequence[Any], bins: int) -> list[Success]:
    """In bins of as many rollouts each, so that a slow stretch is no worse known than a fast one, and the last no worse than the rest; `scored`
    is in order of time."""
    n = max(1, min(bins, len(scored) // LEAST))
    parts = [scored[i * len(scored) // n : (i + 1) * len(scored) // n] for i in range(n)]
    found = []
    for domain in ("all", *sorted({row.domain for row in scored})):
        made = Success(domain, [], [], [], [], [])
        for part in parts:
            rows = [row for row in part if domain in ("all", row.domain)]
            if not rows:
                continue
            mean, half = _interval(rows)
            made.at.append(fmean(float(row.at) for row in part))
            made.mean.append(mean)
            made.low.append(max(0.0, mean - half))
            made.high.append(min(1.0, mean + half))
            made.n.append(len(rows))
        found.append(made)
    return [made for made in found if made.at]


def _now(rows: Sequence[Any]) -> Now | None:
    if not rows:
        return None
    mean, half = _interval(rows)
    return Now(mean, max(0.0, mean - half), min(1.0, mean + half), len(rows))


def _interval(rows: Sequence[Any]) -> tuple[float, float]:
    """Mean performance and half of its 95 % interval. Members of a group tend to be alike, so it is the groups that vary; where they seem to vary
    less than their members do, the members."""
    mean = fmean(float(row.performance) for row in rows)
    apart = sorted((row.group_id, float(row.performance) - mean) for row in rows)
    groups = [sum(off for _, off in members) for _, members in groupby(apart, key=itemgetter(0))]
    squares = max(sum(off**2 for _, off in apart), sum(off**2 for off in groups))
    return mean, Z * sqrt(squares) / len(rows)


def _busy(rows: Sequence[Any], stride: int, bins: int) -> tuple[list[float], list[float]]:
    """Mean number of attempts under way in equal stretches of time."""
    spans = [(row.started, row.ended) for row in rows if row.started is not None and row.ended is not None]
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
    return at, [stride * one / width for one in seconds]


def _costs(over: Sequence[Any], generation_s: float, stride: int) -> list[Cost]:
    """Stages of a rollout, in order; what an agent takes besides generation are its tools and itself."""
    count = len(over) * stride
    if not count:
        return []
    agent = fmean(float(row.agent_s or 0.0) for row in over)
    queued = fmean(float(row.queued_s or 0.0) for row in over)
    verify = fmean(float(row.verify_s or 0.0) for row in over)
    whole = fmean(row.ended - row.started for row in over)
    stages = {
        "generation": generation_s,
        "tools and agent": max(0.0, agent - generation_s),
        "queueing": queued,
        "sandbox and rest": max(0.0, whole - agent - queued),
        "verification": verify,
    }
    return [Cost(stage, "rollout", seconds, seconds * count) for stage, seconds in stages.items()]
