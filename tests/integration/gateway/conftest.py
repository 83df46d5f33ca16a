"""Fixtures of the tests that open a gateway in their own process. Only tests that use them import torch."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from tests.event_loop import anyio_backend

if TYPE_CHECKING:
    from tests.integration.gateway.rig import OpenRig, Policies, Rig

__all__ = ["anyio_backend"]


@pytest.fixture
def open_here(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: "Policies", tmp_path: Path
) -> "OpenRig":
    """Opens a rig before the module's rollout server, which has the module's policies. Keywords are those of `open_rig`."""
    from tests.integration.gateway.rig import open_rig

    return partial(open_rig, database_url, nats_server.url, server_url, policies, tmp_path)


@pytest.fixture
async def rig(open_here: "OpenRig") -> AsyncIterator["Rig"]:
    """A gateway with the settings of `open_rig`, and the published version 0."""
    async with open_here() as rig:
        await rig.publish(0)
        yield rig
