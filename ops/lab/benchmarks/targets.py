"""The output of every benchmark of `ops/bench`: rows as they are measured, then figures with their targets."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkTarget:
    """One figure with its target."""

    name: str
    value: float
    unit: str
    target: float
    holds: bool


def at_most(name: str, value: float, unit: str, target: float) -> BenchmarkTarget:
    """A figure that must not be above its target."""
    return BenchmarkTarget(name=name, value=round(value, 3), unit=unit, target=target, holds=value <= target)


def at_least(name: str, value: float, unit: str, target: float) -> BenchmarkTarget:
    """A figure that must not be below its target."""
    return BenchmarkTarget(name=name, value=round(value, 3), unit=unit, target=target, holds=value >= target)


class Report:
    """Rows of the table, printed as they are measured: an interrupted measurement has shown its results so far."""

    def __init__(self) -> None:
        self._console = Console(width=180, highlight=False)

    def add_row(self, name: str, measured: str, remark: str) -> None:
        self._console.print(f"{name:42s}{measured:60s}{remark}", soft_wrap=True)


def quantile(values: Sequence[float], q: float) -> float:
    """The nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def show(bars: Sequence[BenchmarkTarget], table: Report, *, as_json: bool) -> None:
    """The bars as rows; with `as_json` the last line is {"bars": [...]}."""
    for bar in bars:
        table.add_row(
            bar.name,
            f"{bar.value:g} {bar.unit}",
            f"target {bar.target:g}: {'holds' if bar.holds else 'MISSED'}",
        )
    if as_json:
        print(json.dumps({"bars": [asdict(bar) for bar in bars]}))
