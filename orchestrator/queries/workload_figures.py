"""The figures of a stretch of a run that describe its workload and its throughput, by the statements of `queries.workload`."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.queries import workload as statements


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a run: parts from one commit to another, and how many batches were committed in them, excluding the first commit of each."""

    parts: tuple[tuple[datetime, datetime], ...]
    batches: int

    @property
    def since(self) -> datetime:
        return self.parts[0][0]

    @property
    def until(self) -> datetime:
        return self.parts[-1][1]

    @property
    def seconds(self) -> float:
        return sum((end - start).total_seconds() for start, end in self.parts)

    @property
    def within(self) -> str:
        """The span in PostgreSQL's syntax. An event at a commit belongs to the part that ends with it."""
        return "{" + ",".join(f"({start.isoformat()},{end.isoformat()}]" for start, end in self.parts) + "}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeInSlot:
    """Seconds of work in a slot. `mean_s`: their mean; `cv`: standard deviation ÷ mean; `alike`: the share of the variance between groups,
    negative for none."""

    n: int
    mean_s: float
    cv: float
    alike: float


@dataclass(frozen=True, slots=True)
class WaitTime:
    """Seconds of a wait. `cv`: standard deviation ÷ mean."""

    mean_s: float
    cv: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Sums over steps: seconds of generation and of the gaps before them; sampled and added tokens. `gateways`: how many recorded them."""

    n: int
    generation_s: float
    gap_s: float
    tokens: int
    added: int
    gateways: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTotals:
    """Sums over batches. `busy_s`: from closing to commit; `fixed_s`: of it, saving and committing; `merged`: tokens after merging."""

    n: int
    groups: int
    busy_s: float
    merged: float
    fixed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFigures:
    """The work of a span. Seconds are means. `at_once`: the most calls at one time; `calls`: steps of an attempt; `held_s`: the sum over slots;
    `filtered`, `trained`: groups; `longest`: the slowest of some groups ÷ the mean; `newest`: the directory of the newest weights."""

    attempts: TimeInSlot
    verifications: TimeInSlot
    steps: StepTotals
    training: TrainingTotals
    leased: WaitTime
    settled: WaitTime
    filtered: int
    trained: int
    longest: float
    at_once: float
    calls: float
    admitted_s: float
    claimed_s: float
    report_s: float
    concluded_s: float
    held_s: float
    newest: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputFigures:
    """The results of a span. `held_s`: seconds of attempts in slots; `staleness`: batches; `step_bytes`: of a step of the whole run in Postgres,
    including indexes and partially filled pages."""

    steps: StepTotals
    training: TrainingTotals
    held_s: float
    staleness: float
    step_bytes: float


async def commit_times(
    connection: AsyncConnection, run_id: int, first: int = 0, last: int = 1 << 30
) -> list[datetime]:
    """When the batches `first` to `last` were committed, in order."""
    found = await connection.execute(text(statements.COMMITS), {"run": run_id, "first": first, "last": last})
    return [row.committed for row in found]


async def work_figures(
    connection: AsyncConnection, run_id: int, span: Span, *, slots: int, verify_slots: int, share: float
) -> WorkFigures | None:
    """The work that ended in a span, of groups that train; None if nothing was generated. `share` in [0, 1]: the quantile of groups' durations that
    `longest` gives."""
    values = _values(run_id, span)
    values["report_s"] = report_s = await _figure(connection, statements.REPORT_DELAY, values)
    attempts = _time_in_slot(await _one(connection, statements.ATTEMPTS, values))
    steps = _step_totals(await _one(connection, statements.STEPS, values))
    if not attempts.n or not steps.tokens or not steps.generation_s:
        return None
    groups = await _one(connection, statements.GROUPS, {**values, "share": share})
    return WorkFigures(
        attempts=attempts,
        verifications=_time_in_slot(await _one(connection, statements.VERIFICATIONS, values)),
        steps=steps,
        training=_training_totals(await _one(connection, statements.TRAINING, values)),
        leased=_wait(await _one(connection, statements.LEASED, {**values, "slots": slots})),
        settled=_wait(await _one(connection, statements.SETTLED, {**values, "slots": verify_slots})),
        filtered=groups.filtered,
        trained=groups.trained,
        longest=float(groups.longest),
        at_once=await _figure(connection, statements.AT_ONCE, values) or 1,
        calls=await _figure(connection, statements.CALLS, values),
        admitted_s=await _figure(connection, statements.ADMITTED, values),
        claimed_s=await _figure(connection, statements.CLAIMED, values),
        report_s=report_s,
        concluded_s=await _figure(connection, statements.CONCLUDED, values),
        held_s=await _figure(connection, statements.HELD, values),
        newest=Path(str(await connection.scalar(text(statements.NEWEST), {"run": run_id}))),
    )


async def throughput_figures(connection: AsyncConnection, run_id: int, span: Span) -> ThroughputFigures:
    """The results of a span."""
    values = _values(run_id, span)
    steps = _step_totals(await _one(connection, statements.STEPS, values))
    training = _training_totals(await _one(connection, statements.TRAINING, values))
    values["report_s"] = await _figure(connection, statements.REPORT_DELAY, values)
    stored = await connection.scalar(text(statements.STORED), {"run": run_id, "name": str(run_id)})
    return ThroughputFigures(
        steps=steps,
        training=training,
        held_s=await _figure(connection, statements.HELD, values),
        staleness=await _figure(connection, statements.AGED, values),
        step_bytes=float(stored or 0),
    )


def _values(run_id: int, span: Span) -> dict[str, Any]:
    return {"run": run_id, "since": span.since, "until": span.until, "within": span.within}


async def _one(connection: AsyncConnection, statement: str, values: dict[str, Any]) -> Any:
    return (await connection.execute(text(statement), values)).one()


async def _figure(connection: AsyncConnection, statement: str, values: dict[str, Any]) -> float:
    return max(0.0, float(await connection.scalar(text(statement), values) or 0))


def _time_in_slot(row: Any) -> TimeInSlot:
    return TimeInSlot(n=row.n, mean_s=float(row.held or 0), cv=float(row.cv), alike=float(row.alike))


def _wait(row: Any) -> WaitTime:
    return WaitTime(float(row.mean), float(row.cv))


def _step_totals(row: Any) -> StepTotals:
    return StepTotals(
        n=row.n,
        generation_s=float(row.generation),
        gap_s=float(row.gap),
        tokens=int(row.tokens),
        added=int(row.added),
        gateways=row.gateways,
    )


def _training_totals(row: Any) -> TrainingTotals:
    return TrainingTotals(
        n=row.n,
        groups=int(row.groups or 0),
        busy_s=float(row.busy),
        merged=float(row.merged),
        fixed_s=float(row.fixed),
    )
