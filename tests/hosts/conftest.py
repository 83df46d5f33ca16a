"""The tier `hosts` (./ops/test --tier hosts) alone: network namespaces as hosts; root, and iproute2, are needed."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.e2e.stack_rig import place
from tests.hosts.network import Network, remove_leftovers, standing_on
from tests.hosts.world import NAMES, World, living

collect_ignore_glob = [] if os.environ.get("PENSTOCK_TIER") == "hosts" else ["test_*.py"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop for all: the hosts live as long as the session."""
    return "asyncio"


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """The hosts; the test itself runs on `client`."""
    assert os.geteuid() == 0, "network namespaces need root"
    remove_leftovers()
    network = Network()
    try:
        for name in NAMES:
            network.add(name)
        with standing_on(network.hosts["client"]):
            yield network
    finally:
        network.remove()


@pytest.fixture(scope="session")
async def world(anyio_backend: str, network: Network) -> AsyncIterator[World]:
    with place() as directory:
        async with living(network, directory) as world:
            yield world
