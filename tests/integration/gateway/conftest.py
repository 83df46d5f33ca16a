"""Fixtures of the tests that open a gateway in their own process. Only tests that use them import torch."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats

if TYPE_CHECKING:
    from tests.integration.gateway.rig import OpenRig, Policies


@pytest.fixture
def open_here(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: "Policies", tmp_path: Path
) -> "OpenRig":
    """Opens a rig before the module's rollout server, which has the module's policies. Keywords are those of `open_rig`."""
    from tests.integration.gateway.rig import open_rig

    return partial(open_rig, database_url, nats_server.url, server_url, policies, tmp_path)
