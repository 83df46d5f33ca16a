"""A NATS that is away is one finding in seconds, with its reason: nobody waits minutes to be told what is wrong."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.cluster.doctor import Expected, bus

pytestmark = pytest.mark.anyio


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """Of this machine; nobody answers there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


async def asked(url: str, tmp_path: Path) -> str:
    with anyio.fail_after(8):
        (found,) = await bus.checks(url, Expected(tmp_path, 1), time.time)
    assert (found.name, found.ok, found.fix) == ("NATS", False, "start it, or mend NATS_URL")
    return found.detail


async def test_a_nats_that_refuses_connections_is_found_at_once(port: socket.socket, tmp_path: Path) -> None:
    url = f"nats://127.0.0.1:{port.getsockname()[1]}"
    assert "Connect call failed" in await asked(url, tmp_path)
    assert "Connect call failed" in await asked(f"{url},{url.replace('127.0.0.1', '127.0.0.2')}", tmp_path)


async def test_a_nats_that_takes_connections_and_says_nothing_is_found_in_its_time(
    port: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "PATIENCE_S", 0.3)
    port.listen()
    assert "does not answer" in await asked(f"nats://127.0.0.1:{port.getsockname()[1]}", tmp_path)
