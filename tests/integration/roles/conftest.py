"""Fixtures of the tests of the orchestrator's roles."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.deploy.embedded.nats import EmbeddedNats
from tests.event_loop import anyio_backend
from tests.integration.roles.rig import Stage, staged

__all__ = ["anyio_backend"]


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    """The roles of a run with the settings of `staged`, on a data pool and a bus of their own."""
    async with staged(engine, nats_server.url) as stage:
        yield stage
