"""What train steps report, as lines over the run: of a long run a sample, so that asking costs the same however long it is.

Of `stride` neighbours in `train_steps` one is drawn (`look.sample`) and read by its key, `SAMPLE` rows at most, and the last; these are put into at
most `points` bins. Undone batches are left out, so that a rewound run has one line, not two.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.look.sample import sampled

SAMPLE = 900
PLAIN = (
    "reward", "performance", "loss", "gradient_norm", "lr", "kl_k1", "kl_k3", "clip_fraction", "cut_fraction", "entropy", "ess",
    "merge_ratio", "mean_abs_dlogprob", "wall_s", "cpu_s", "action_tokens", "balance_loss", "expert_imbalance",
)  # fmt: skip
"""Keys of `train_steps.metrics` that are one number."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `part`: the domain or phase that it is of, empty: of all. Its values stand beside `Curves.steps`; `low` and `high` are the extremes
    of each bin, empty where every bin is one train step."""

    key: str
    part: str
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


@dataclass(frozen=True, slots=True)
class Curves:
    """`steps`: train steps (bins: their mean), `at`: when they were committed, seconds since 1970. `first` and `last`: the train steps that the run
    has; one of every `stride` was read."""

    run: str
    created: float
    first: int | None
    last: int | None
    stride: int
    steps: list[float]
    at: list[float]
    batches: list[int]
    lines: list[Line]


_ENDS = text("SELECT min(train_step) AS first, max(train_step) AS last FROM train_steps WHERE run_id = :run")
_CREATED = text("SELECT name, extract(epoch FROM created)::float8 AS created FROM runs WHERE run_id = :run")
# The metrics come whole: taking them apart in Postgres costs three times as much as sending them.
_ROWS = text(
    """
    SELECT t.train_step, b.batch_no, extract(epoch FROM t.at)::float8 AS at, cast(t.metrics AS text) AS metrics
    FROM unnest(cast(:train_steps AS int[])) AS wanted(train_step)
    JOIN train_steps t ON t.run_id = :run AND t.train_step = wanted.train_step
    JOIN batches b ON b.batch_id = t.batch_id AND b.state = 'committed'
    ORDER BY t.train_step
    """
)


async def curves(
    connection: AsyncConnection,
    run_id: int,
    *,
    points: int = 300,
    first: int | None = None,
    last: int | None = None,
) -> Curves:
    """The lines of the train steps from `first` to `last` (None: from the first, to the last)."""
    run = (await connection.execute(_CREATED, {"run": run_id})).one()
    ends = (await connection.execute(_ENDS, {"run": run_id})).one()
    if ends.first is None:
        return Curves(run.name, run.created, None, None, 1, [], [], [], [])
    low, high = max(ends.first, first or ends.first), min(ends.last, last or ends.last)
    drawn, stride = sampled(low, high, SAMPLE)
    found = await connection.execute(
        _ROWS, {"run": run_id, "train_steps": sorted({*drawn, high} if drawn else drawn)}
    )
    rows = [
        _Row(train_step, batch_no, at, _METRICS.decode(metrics))
        for train_step, batch_no, at, metrics in found
    ]
    size = max(1, -(-len(rows) // points))
    bins = [rows[i : i + size] for i in range(0, len(rows), size)]
    return Curves(
        run.name,
        run.created,
        ends.first,
        ends.last,
        stride,
        [fmean(row.train_step for row in part) for part in bins],
        [part[-1].at for part in bins],
        [part[-1].batch_no for part in bins],
        _lines(list(_columns(rows, stride)), size),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One train step that was read."""

    train_step: int
    batch_no: int
    at: float
    metrics: dict[str, Any]


_METRICS = msgspec.json.Decoder(dict[str, Any])
_Column = list[float | None]
"""A value of each row that was read."""


def _lines(columns: Sequence[tuple[str, str, _Column]], size: int) -> list[Line]:
    """Of (key, part, values) the lines that have any value, in bins of `size`: all at once, so that a page costs few milliseconds."""
    if not columns or not columns[0][2]:
        return []
    table = np.array([values for _, _, values in columns], dtype=np.float64)  # columns × rows, NaN: none
    lacking = -table.shape[1] % size
    binned = np.pad(table, ((0, 0), (0, lacking)), constant_values=np.nan).reshape(len(columns), -1, size)
    known = (~np.isnan(binned)).sum(axis=2)
    mean = _plain(np.where(known, np.nansum(binned, axis=2) / np.maximum(known, 1), np.nan))
    low, high = (_plain(each.reduce(binned, axis=2)) if size > 1 else None for each in (np.fmin, np.fmax))
    return [
        Line(key, part, mean[i], low[i] if low else [], high[i] if high else [])
        for i, (key, part, _) in enumerate(columns)
        if known[i].any()
    ]


def _plain(table: npt.NDArray[np.float64]) -> list[_Column]:
    """Rows of numbers, None for NaN."""
    return [[None if value != value else value for value in row] for row in table.tolist()]


def _columns(rows: Sequence[_Row], stride: int) -> Iterator[tuple[str, str, _Column]]:
    """(key, part, values) of every line."""
    every = [row.metrics for row in rows]
    for key in PLAIN:
        yield key, "", [one.get(key) for one in every]
    yield "tokens_per_s", "", _rates(rows, stride)
    yield "trained_tokens_per_s", "", [_trained_rate(one) for one in every]
    ages = [_section(one, "staleness") for one in every]
    yield "staleness", "", [_mean_staleness(one) for one in ages]
    yield "staleness_max", "", [float(max(map(int, one))) if one else None for one in ages]
    domains = [_section(one, "domains") for one in every]
    for domain in sorted({name for one in domains for name in one}):
        found = [_section(one, domain) for one in domains]
        for key in ("reward", "performance", "token_share"):
            yield key, domain, [one.get(key) for one in found]
    # A batch is read, saved and committed once: its last train step has that, the others none, so that phases add up to the whole in every mean.
    phases = [_section(one, "seconds") for one in every]
    yield "seconds", "", [sum(one.values()) if one else None for one in phases]
    for phase in dict.fromkeys(name for one in phases for name in one):
        yield "seconds", phase, [one.get(phase, 0.0) if one else None for one in phases]


def _section(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within an object; empty where there is none."""
    return metrics.get(name) or {}


def _trained_rate(metrics: Mapping[str, Any]) -> float | None:
    """Tokens of samples per second of the train step: what one row per sample would have forwarded."""
    tokens, wall_s = metrics.get("tokens_naive"), metrics.get("wall_s")
    return tokens / wall_s if tokens and wall_s else None


def _mean_staleness(ages: Mapping[str, Any]) -> float | None:
    total = sum(ages.values())
    return sum(int(age) * tokens for age, tokens in ages.items()) / total if total else None


def _rates(rows: Sequence[_Row], stride: int) -> _Column:
    """Action tokens trained per second of the run: of a batch, whose train steps are committed together, by the time since the last commit."""
    rates: _Column = []
    before: float | None = None
    last = 0  # train step that was read before
    for _, found in groupby(rows, key=attrgetter("batch_no")):
        same = list(found)
        at = same[-1].at
        tokens = sum(row.metrics.get("action_tokens") or 0.0 for row in same)
        if stride > 1:  # of the train steps that were not read as many each
            tokens *= (same[-1].train_step - last) / len(same)
        last = same[-1].train_step
        passed = at - before if before is not None else 0.0
        rates += [tokens / passed if passed > 0 else None] * len(same)
        before = at
    return rates
