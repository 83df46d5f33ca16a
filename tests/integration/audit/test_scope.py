"""The audit uses the time limits of the run's processes: for keys of the process, those of the file."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.audit.snapshot import RECONNECTS, Outside, take_snapshot
from orchestrator.settings.config import Config
from tests import builders

pytestmark = [pytest.mark.services, pytest.mark.anyio]

OWN = Config.model_validate(
    {
        "timeouts": {"arrival_s": 123.0, "pool_retry_s": 7.0},
        "servers": {"lease_ttl_s": 33.0},
        "rollout": {"lease_ttl_s": 44.0},
    }
)


async def test_limits_of_the_process_are_the_files_and_those_of_the_run_stay(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, Config())
    async with take_snapshot(engine, run.name, Outside(own=OWN)) as snapshot:
        found = snapshot.parameters
    assert (found["arrival"], found["server_ttl"], found["reconnect"]) == (123.0, 33.0, RECONNECTS * 7.0)
    assert found["ttl"] == Config().rollout.lease_ttl_s
    async with take_snapshot(engine, run.name, Outside()) as snapshot:
        assert snapshot.parameters["arrival"] == Config().timeouts.arrival_s
