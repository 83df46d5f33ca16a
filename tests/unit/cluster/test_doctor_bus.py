"""A NATS that is away is one finding in seconds, with its reason: the report does not take minutes."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.deploy.cluster.doctor import Expected, bus

pytestmark = pytest.mark.anyio


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port of this machine without a listener."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


async def detail_of(url: str, tmp_path: Path) -> str:
    with anyio.fail_after(60):
        (found,) = await bus.checks(url, Expected(directory=tmp_path, replicas=1), time.time)
    assert (found.name, found.ok, found.fix) == ("NATS", False, "start it, or correct NATS_URL")
    return found.detail


async def test_a_nats_that_refuses_connections_is_found_at_once(port: socket.socket, tmp_path: Path) -> None:
    url = f"nats://127.0.0.1:{port.getsockname()[1]}"
    assert "Connect call failed" in await detail_of(url, tmp_path)
    assert "Connect call failed" in await detail_of(
        f"{url},{url.replace('127.0.0.1', '127.0.0.2')}", tmp_path
    )


async def test_a_nats_that_takes_connections_and_says_nothing_is_found_in_its_time(
    port: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "PATIENCE_S", 0.3)
    port.listen()
    assert "does not answer" in await detail_of(f"nats://127.0.0.1:{port.getsockname()[1]}", tmp_path)
