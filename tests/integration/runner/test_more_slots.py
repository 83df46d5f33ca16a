"""A run keeps its initial configuration; the number of its runners' slots depends on the machine, and may change."""

import pytest

from orchestrator.app import open_context
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.runs import get_run
from orchestrator.roles.dispatcher import dispatch
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.settings.config import Config
from tests.builders import accepted

pytestmark = [pytest.mark.anyio, pytest.mark.services]


def a_config(database_url: str, nats_url: str, slots: int, capacity: int) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "slots"},
            "services": {"database_url": database_url, "nats_url": nats_url},
            "rollout": {"slots": slots},
            "queue": {"capacity": capacity, "batch_groups": 2, "group_size": 2},
        }
    )


async def test_a_restarted_orchestrator_dispatches_into_more_slots_by_the_rules_of_the_run(
    database_url: str, nats_server: EmbeddedNats
) -> None:
    async def dispatched(slots: int, capacity: int) -> int:
        async with open_context(a_config(database_url, nats_server.url, slots, capacity)) as context:
            if slots == 1:
                async with context.engine.connect() as connection:
                    run = await get_run(connection, context.run)
                await accepted(context.engine, run, [f"group {n}" for n in range(8)], size=2)
            assert QueueSettings.of(context.config).capacity == 8  # as the run started
            async with context.engine.begin() as connection:
                return await dispatch(connection, context)

    assert await dispatched(1, 8) == 2  # 1 slot, and one rollout that waits ready
    assert await dispatched(7, 4) == 6  # 7 slots and one, less the 2 from before
