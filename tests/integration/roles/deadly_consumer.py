"""A process that consumes the tasks of one run, and kills itself at a message that holds the word poison. Arguments: the database, NATS, the run."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.pool.engine import open_engine
from orchestrator.pool.runs import get_run
from orchestrator.roles.consume import Outcome, consume
from orchestrator.roles.context import OrchestratorContext
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import Timeouts, use
from tests.integration.roles.rig import connected

ACK_WAIT_S = 2.0


async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
    if any(b"poison" in delivery.body for delivery in deliveries):
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


async def main(database_url: str, nats_url: str, name: str) -> None:
    with use(Timeouts(bus_ack_wait_s=ACK_WAIT_S)):
        async with open_engine(database_url) as engine, connected(nats_url, name) as bus:
            async with engine.connect() as connection:
                run = await get_run(connection, name)
            config = Config.from_json(run.config)
            context = OrchestratorContext(run_id=run.run_id, run=name, config=config, engine=engine, bus=bus)
            await consume(context, subjects.consume_tasks(), handle, at="tests")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
