"""A step that no stream accepts: the gateway keeps it where people look for such steps, and its journal drops it."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.dead_letters import dead_messages, keep_unsendable
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.settled import MessageKey, MessageKind, settled
from tests import builders
from tests.integration.pool.rig import running, small

pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def test_a_step_too_large_for_the_bus_is_a_dead_letter_and_settled(
    engine: AsyncEngine, database_url: str
) -> None:
    run = await builders.make_run(engine, small())
    lease, *_ = await running(engine, run)
    key = MessageKey(rollout_id=lease.rollout_id, epoch=lease.epoch, idx=0, kind=MessageKind.STEP)
    async with open_engine(database_url, Role.GATEWAY) as gateway, gateway.begin() as connection:
        assert await settled(connection, run.run_id, [key]) == set()
        subject = f"steps.{run.name}.{lease.rollout_id}"
        await keep_unsendable(
            connection, run.run_id, subject, "StepRecorded/1", str(key), b"{}", "9 bytes are too many"
        )
        assert await settled(connection, run.run_id, [key]) == {key}
    async with engine.connect() as connection:
        (letter,) = await dead_messages(connection, run.run_id)
    assert (letter.stream, letter.subject, letter.msg_id) == ("STEPS", subject, str(key))
    assert (letter.reason, letter.deliveries, letter.body) == ("9 bytes are too many", 0, b"{}")
