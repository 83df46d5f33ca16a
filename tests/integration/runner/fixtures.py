"""Rigs of a runner over real services. A module whose rigs differ has a fixture of the same name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from tests.integration.runner.rig import Opens, Rig, open_rig


@pytest.fixture
def opens(database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path) -> Opens:
    """Opens a rig; keyword arguments go to `open_rig`, unknown ones to the section `rollout`."""

    @asynccontextmanager
    async def opened(**more: Any) -> AsyncIterator[Rig]:
        async with open_rig(database_url, nats_server.url, directory, model, **more) as rig:
            yield rig

    return opened


@pytest.fixture
def opens_at_work(opens: Opens) -> Opens:
    """The same, with a runner and a verifier at work."""

    @asynccontextmanager
    async def opened(**more: Any) -> AsyncIterator[Rig]:
        async with opens(**more) as rig:
            rig.start_runner()
            rig.start_verifier()
            yield rig

    return opened
