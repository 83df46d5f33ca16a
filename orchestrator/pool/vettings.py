"""The levels of a run's tasks: kept by `penstock tasks vet` and by intake, read by intake."""

from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.vetting import Level, Vetting
from orchestrator.pool.rows import from_row
from orchestrator.pool.sanitize import clean_json
from orchestrator.pool.tables import vettings


async def keep_vetting(
    connection: AsyncConnection, run_id: int, vetting: Vetting, report: dict[str, Any] | None = None
) -> None:
    """Keep a level in place of an older one of the same bytes. Without `report` (the level came with a message) it replaces only a lower level that
    a message brought too, or what older controls found."""
    values = {
        "level": vetting.level,
        "times": vetting.times,
        "provider": vetting.provider,
        "version": vetting.version,
        "report": None if report is None else clean_json(report),
    }
    statement = insert(vettings).values(run_id=run_id, sha=bytes.fromhex(vetting.sha256), **values)
    lower = [each for each in Level if not each.reaches(vetting.level)]
    replaces = or_(
        vettings.c.version < vetting.version,
        and_(vettings.c.report.is_(None), vettings.c.level.in_(lower)),
    )
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["run_id", "sha"], set_=values, where=replaces if report is None else None
        )
    )


async def find_vetting(connection: AsyncConnection, run_id: int, sha256: str) -> Vetting | None:
    """The kept level of these bytes, None without one."""
    columns = (vettings.c.level, vettings.c.times, vettings.c.provider, vettings.c.version)
    query = select(*columns).where(vettings.c.run_id == run_id, vettings.c.sha == bytes.fromhex(sha256))
    row = (await connection.execute(query)).first()
    return None if row is None else from_row(Vetting, row, sha256=sha256)
