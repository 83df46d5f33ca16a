"""A PostgreSQL, and a NATS server, that accept connections and never answer."""

import socket
from collections.abc import Iterator

import pytest

from orchestrator.bus.base import BusError
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.engine import open_engine
from orchestrator.settings.timeouts import Timeouts, use

pytestmark = pytest.mark.anyio


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that listens and never answers, like a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


async def test_a_database_that_says_nothing_is_named_in_one_sentence(silent: int) -> None:
    sentence = rf"^PostgreSQL at 127.0.0.1:{silent}/x cannot be used \(it does not answer\): start it .*$"
    with use(Timeouts(pool_connect_s=0.2)), pytest.raises(ServiceError, match=sentence):
        async with open_engine(f"postgresql://user:secret@127.0.0.1:{silent}/x"):
            pass


async def test_a_bus_that_says_nothing_is_named_in_one_sentence(silent: int) -> None:
    with pytest.raises(BusError, match=rf"^NATS does not answer at 127.0.0.1:{silent} \([^)]+\): start it"):
        async with NatsBus.connect(f"nats://127.0.0.1:{silent}", name="x", patience_s=0.5):
            pass
