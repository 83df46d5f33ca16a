"""One look at a run: its queue, what is at work, and why it waits."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.config import Config, as_kept
from orchestrator.flow.dispatcher import queue_settings
from orchestrator.look.at_work import AtWork, at_work
from orchestrator.look.queue import Queue, queue
from orchestrator.pool.runs import get_run


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is shown."""

    run: str
    queue: Queue
    work: AtWork


async def snapshot(connection: AsyncConnection, config: Config) -> Snapshot:
    """The run of the configuration as it is now."""
    run = await get_run(connection, config.run.name)
    kept = as_kept(run.config, config)
    return Snapshot(
        run.name, await queue(connection, run, kept, queue_settings(kept)), await at_work(connection, run)
    )
