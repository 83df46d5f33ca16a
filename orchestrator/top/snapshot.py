"""One snapshot of a run: its queue, its current activity, and why it waits."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.pool.runs import get_run
from orchestrator.queries.activity import RunActivity, run_activity
from orchestrator.queries.queue import Queue, queue
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.settings.config import Config, effective


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The data on display."""

    run: str
    queue: Queue
    work: RunActivity


async def snapshot(connection: AsyncConnection, config: Config) -> Snapshot:
    """The run of the configuration as it is now."""
    run = await get_run(connection, config.run.name)
    run_config = effective(run.config, config)
    return Snapshot(
        run.name,
        await queue(connection, run, run_config, QueueSettings.of(run_config)),
        await run_activity(connection, run),
    )
