"""Scalars of a run: every number of every train step, and held-out success over policy versions.

`queries.curves` reads a bounded sample of them for pages; this module reads all of them, for exports.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BatchState
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.tables import batches, runs, train_steps
from orchestrator.queries.evaluations import evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRow:
    """Values at one moment. `axis`: the unit of `step`, `train_step`, or `policy_version` for evaluations."""

    axis: str
    step: int
    at: datetime
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScalars:
    """All scalars of a run. `config`: of the run, without the addresses of its services."""

    run: str
    created: datetime
    config: Mapping[str, Any]
    rows: list[ScalarRow]


async def run_scalars(connection: AsyncConnection, run: StoredRun, created: datetime) -> RunScalars:
    """All scalars in the order of their axes. Train steps of voided batches, and evaluations of versions that a rewind undid, are left
    out."""
    found = []
    query = (
        select(
            train_steps.c.train_step,
            train_steps.c.at,
            train_steps.c.metrics,
            batches.c.batch_no,
            batches.c.version,
        )
        .join(batches, batches.c.batch_id == train_steps.c.batch_id)
        .where(train_steps.c.run_id == run.run_id, batches.c.state == BatchState.COMMITTED)
        .order_by(train_steps.c.train_step)
    )
    for row in await connection.execute(query):
        values = dict(numbers("train", row.metrics)) | {"train/batch": float(row.batch_no)}
        if row.version is not None:
            values["train/policy_version"] = float(row.version)
        found.append(ScalarRow(axis="train_step", step=row.train_step, at=row.at, values=values))
    for evaluation in await evaluations(connection, run.run_id):
        if evaluation.superseded_by is not None:
            continue
        values = {}
        for point in evaluation.points:
            stem = f"eval/{evaluation.suite or 'evaluation'}/{point.domain}"
            values |= {
                f"{stem}/success": point.success,
                f"{stem}/success_low": point.low,
                f"{stem}/success_high": point.high,
                f"{stem}/performance": point.mean,
                f"{stem}/rollouts": float(point.n),
                f"{stem}/rollouts_wanted": float(point.wanted),
            }
        for reason, n in evaluation.without_verdict.items():
            values[f"eval/{evaluation.suite or 'evaluation'}/without_verdict/{reason}"] = float(n)
        if values:
            found.append(
                ScalarRow(
                    axis="policy_version",
                    step=evaluation.version,
                    at=evaluation.last or evaluation.first,
                    values=values,
                )
            )
    config = {name: section for name, section in run.config.items() if name != "services"}
    return RunScalars(run=run.name, created=created, config=config, rows=found)


def numbers(stem: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number in nested metrics by its path; true counts as 1.

    >>> dict(numbers("train", {"loss": 0.5, "domains": {"agent": {"reward": 1}}, "skip_reason": None}))
    {'train/loss': 0.5, 'train/domains/agent/reward': 1.0}
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from numbers(f"{stem}/{name}", inner)
    elif isinstance(value, (int, float)):
        yield stem, float(value)


async def clock_and_created(connection: AsyncConnection, run_id: int) -> tuple[datetime, datetime]:
    """(the database's time now, when the run was created)."""
    row = (
        await connection.execute(
            select(func.clock_timestamp(), runs.c.created).where(runs.c.run_id == run_id)
        )
    ).one()
    return row[0], row[1]
