"""Reports as rows of a run (`vettings`)."""

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.vetting import VETTING
from orchestrator.pool.transact import once
from orchestrator.pool.vettings import keep_vetting
from orchestrator.queries.vettings import report_of
from orchestrator.tasks.vetting.report import TaskReport


class RunRecords:
    """The reports of one run. `engine` may write."""

    def __init__(self, engine: AsyncEngine, run_id: int) -> None:
        self._engine, self._run_id = engine, run_id
        self._one = anyio.Lock()

    async def find(self, sha256: str) -> TaskReport | None:
        async with self._one, self._engine.connect() as connection:
            found = await report_of(connection, self._run_id, sha256)
        if found is None or found.get("version") != VETTING:
            return None
        return TaskReport.from_json(found)

    async def add(self, report: TaskReport) -> None:
        async def work(connection: AsyncConnection) -> None:
            await keep_vetting(connection, self._run_id, report.vetting, report.to_json())

        async with self._one:
            await once(self._engine, work, at="person.commit")
