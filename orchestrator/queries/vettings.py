"""Levels and reports of a run's tasks, by content hash."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.vetting import Vetting
from orchestrator.pool.columns import among
from orchestrator.pool.rows import from_row
from orchestrator.pool.tables import vettings


async def levels(connection: AsyncConnection, run_id: int, hashes: Collection[str]) -> dict[str, Vetting]:
    """The kept levels of these content hashes; those without one are left out."""
    columns = (vettings.c.sha, vettings.c.level, vettings.c.times, vettings.c.provider, vettings.c.version)
    query = select(*columns).where(
        vettings.c.run_id == run_id, among(vettings.c.sha, [bytes.fromhex(each) for each in hashes])
    )
    return {
        row.sha.hex(): from_row(Vetting, row, without=("sha",), sha256=row.sha.hex())
        for row in await connection.execute(query)
    }


async def report_of(connection: AsyncConnection, run_id: int, sha256: str) -> dict[str, Any] | None:
    """The report as `orchestrator.tasks.vetting.report` writes it; None without one."""
    query = select(vettings.c.report).where(
        vettings.c.run_id == run_id, vettings.c.sha == bytes.fromhex(sha256)
    )
    found: dict[str, Any] | None = await connection.scalar(query)
    return found
