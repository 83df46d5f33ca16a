"""Waits before a process starts: for the schema of the data pool, and for the run in it. For init containers, units and job scripts."""

import anyio

from orchestrator.contracts.errors import PenstockError
from orchestrator.pool.engine import NO_WAITING_HELPS
from orchestrator.pool.opened import opened
from orchestrator.pool.runs import get_run
from orchestrator.settings.config import Config

POLL_INTERVAL_S = 1.0


async def wait(config: Config, *, run: bool, timeout_s: float) -> None:
    """Return once the database has this code's schema and, with `run`, the run exists. PenstockError, one sentence, after `timeout_s`;
    one of NO_WAITING_HELPS at once."""
    deadline = anyio.current_time() + timeout_s
    while True:
        try:
            async with (
                opened(config.services.database_url, name="penstock-wait") as engine,
                engine.connect() as connection,
            ):
                if run:
                    await get_run(connection, config.run.name)
                return
        except NO_WAITING_HELPS:
            raise
        except PenstockError:
            if anyio.current_time() > deadline:
                raise
        await anyio.sleep(POLL_INTERVAL_S)
