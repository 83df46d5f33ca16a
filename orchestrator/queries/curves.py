"""Metrics of train steps as curves over the run. A long run is sampled, so that the cost does not grow with its length.

Of `stride` neighbours in `train_steps` one is drawn (`queries.downsample`) and read by its key: at most `SAMPLE` rows, plus the last. These
rows go into at most `points` bins. Undone batches are left out, so that a rewound run has one line, not two.
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

from orchestrator.queries.downsample import downsample

SAMPLE = 900
PLAIN = (
    "reward", "performance", "loss", "gradient_norm", "lr", "kl_k1", "kl_k3", "clip_fraction", "cut_fraction", "entropy", "ess",
    "merge_ratio", "mean_abs_dlogprob", "wall_s", "cpu_s", "action_tokens", "balance_loss", "expert_imbalance",
)  # fmt: skip
"""Keys of `train_steps.metrics` with a single number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line. `part`: its domain or phase, empty: of all. Its values align with `Curves.steps`; `low` and `high` are the extremes of each
    bin, empty if every bin is one train step."""

    key: str
    part: str
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """`steps`: train steps (bins: their mean), `at`: their commit times, seconds since 1970. `first` and `last`: the first and last train
    step that counts; one of every `stride` was read."""

    run: str
    created: float
    first: int | None
    last: int | None
    stride: int
    steps: list[float]
    at: list[float]
    batches: list[int]
    lines: list[Line]


_END = """(SELECT t.train_step FROM train_steps t JOIN batches b ON b.batch_id = t.batch_id AND b.state = 'committed'
            WHERE t.run_id = :run ORDER BY t.train_step {} LIMIT 1)"""
_ENDS = text(f"SELECT {_END.format('ASC')} AS first, {_END.format('DESC')} AS last")
_CREATED = text("SELECT name, extract(epoch FROM created)::float8 AS created FROM runs WHERE run_id = :run")
# The metrics are fetched whole: extracting single keys in Postgres costs three times as much as sending them.
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
        return Curves(
            run=run.name,
            created=run.created,
            first=None,
            last=None,
            stride=1,
            steps=[],
            at=[],
            batches=[],
            lines=[],
        )
    low, high = max(ends.first, first or ends.first), min(ends.last, last or ends.last)
    drawn, stride = downsample(low, high, SAMPLE)
    found = await connection.execute(
        _ROWS, {"run": run_id, "train_steps": sorted({*drawn, high} if drawn else drawn)}
    )
    rows = [
        _TrainStepRow(train_step=train_step, batch_no=batch_no, at=at, metrics=_METRICS.decode(metrics))
        for train_step, batch_no, at, metrics in found
    ]
    size = max(1, -(-len(rows) // points))
    bins = [rows[i : i + size] for i in range(0, len(rows), size)]
    return Curves(
        run=run.name,
        created=run.created,
        first=ends.first,
        last=ends.last,
        stride=stride,
        steps=[fmean(row.train_step for row in part) for part in bins],
        at=[part[-1].at for part in bins],
        batches=[part[-1].batch_no for part in bins],
        lines=_lines(list(_columns(rows, stride)), size),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainStepRow:
    """One train step that was read."""

    train_step: int
    batch_no: int
    at: float
    metrics: dict[str, Any]


_METRICS = msgspec.json.Decoder(dict[str, Any])
_Column = list[float | None]
"""A value of each row that was read."""


def _lines(columns: Sequence[tuple[str, str, _Column]], size: int) -> list[Line]:
    """Lines from (key, part, values), in bins of `size`, without those that have no value. Computed all at once: a page costs few
    milliseconds."""
    if not columns or not columns[0][2]:
        return []
    table = np.array([values for _, _, values in columns], dtype=np.float64)  # columns × rows, NaN: none
    padding = -table.shape[1] % size
    binned = np.pad(table, ((0, 0), (0, padding)), constant_values=np.nan).reshape(len(columns), -1, size)
    known = (~np.isnan(binned)).sum(axis=2)
    mean = _plain(np.where(known, np.nansum(binned, axis=2) / np.maximum(known, 1), np.nan))
    low, high = (_plain(each.reduce(binned, axis=2)) if size > 1 else None for each in (np.fmin, np.fmax))
    return [
        Line(key=key, part=part, mean=mean[i], low=low[i] if low else [], high=high[i] if high else [])
        for i, (key, part, _) in enumerate(columns)
        if known[i].any()
    ]


def _plain(table: npt.NDArray[np.float64]) -> list[_Column]:
    """Rows of numbers, None for NaN."""
    return [[None if value != value else value for value in row] for row in table.tolist()]


def _columns(rows: Sequence[_TrainStepRow], stride: int) -> Iterator[tuple[str, str, _Column]]:
    """(key, part, values) of every line."""
    every = [row.metrics for row in rows]
    for key in PLAIN:
        yield key, "", [entry.get(key) for entry in every]
    yield "tokens_per_s", "", _rates(rows, stride)
    yield "trained_tokens_per_s", "", [_trained_rate(entry) for entry in every]
    ages = [_section(entry, "staleness") for entry in every]
    yield "staleness", "", [_mean_staleness(entry) for entry in ages]
    yield "staleness_max", "", [float(max(map(int, entry))) if entry else None for entry in ages]
    domains = [_section(entry, "domains") for entry in every]
    for domain in sorted({name for entry in domains for name in entry}):
        found = [_section(entry, domain) for entry in domains]
        for key in ("reward", "performance", "token_share"):
            yield key, domain, [entry.get(key) for entry in found]
    # A batch is read, saved and committed once: only its last train step has these phases, so that phases add up to the whole in every
    # mean.
    phases = [_section(entry, "seconds") for entry in every]
    yield "seconds", "", [sum(entry.values()) if entry else None for entry in phases]
    for phase in dict.fromkeys(name for entry in phases for name in entry):
        yield "seconds", phase, [entry.get(phase, 0.0) if entry else None for entry in phases]


def _section(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object; empty if missing."""
    return metrics.get(name) or {}


def _trained_rate(metrics: Mapping[str, Any]) -> float | None:
    """Tokens of samples per second of the train step: the tokens that one row per sample would have forwarded."""
    tokens, wall_s = metrics.get("tokens_naive"), metrics.get("wall_s")
    return tokens / wall_s if tokens and wall_s else None


def _mean_staleness(ages: Mapping[str, Any]) -> float | None:
    total = sum(ages.values())
    return sum(int(age) * tokens for age, tokens in ages.items()) / total if total else None


def _rates(rows: Sequence[_TrainStepRow], stride: int) -> _Column:
    """Action tokens trained per second of the run. Train steps of a batch are committed together, so the divisor is the time since the last
    commit."""
    rates: _Column = []
    before: float | None = None
    last = 0  # the train step read before
    for _, found in groupby(rows, key=attrgetter("batch_no")):
        same = list(found)
        at = same[-1].at
        tokens = sum(row.metrics.get("action_tokens") or 0.0 for row in same)
        if stride > 1:  # count the skipped train steps at the same mean
            tokens *= (same[-1].train_step - last) / len(same)
        last = same[-1].train_step
        passed = at - before if before is not None else 0.0
        rates += [tokens / passed if passed > 0 else None] * len(same)
        before = at
    return rates
