"""A listener whose process has no descriptors left waits until it has some; it ends neither itself nor the process."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from orchestrator.runtime import accepting, scrapes
from orchestrator.runtime.scrapes import ScrapeServer

REPOSITORY = Path(__file__).resolve().parents[3]
LONG_S = 60.0
SPARE = 4
SERVER = f"""
import contextlib, os, resource, sys
import anyio
from orchestrator.runtime import accepting

async def echo(stream):
    async with stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            async for chunk in stream:
                await stream.send(chunk)

async def main():
    listener = await anyio.create_unix_listener(sys.argv[1], backlog=64)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + {SPARE}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    print("serves", flush=True)
    await accepting.serve(listener, echo)

anyio.run(main)
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "s"
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'agents'}"}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stderr
        try:
            seen = process.stdout.readline()
            assert seen == "serves\n", process.stderr.read()
            yield path
            assert process.poll() is None, process.stderr.read()
        finally:
            process.kill()


def echoes(client: socket.socket, text: bytes) -> bool:
    client.sendall(text)
    return client.recv(100) == text


def test_connections_beyond_the_descriptors_wait_and_are_served_once_others_have_ended(served: Path) -> None:
    clients = []
    for _ in range(3 * SPARE):
        clients.append(socket.socket(socket.AF_UNIX))
        clients[-1].settimeout(LONG_S)
        clients[-1].connect(str(served))
        clients[-1].sendall(b"oak")
    assert clients[0].recv(100) == b"oak"
    clients[-1].settimeout(1.0)
    with pytest.raises(TimeoutError):
        clients[-1].recv(100)
    for client in clients[:-1]:
        client.close()
    clients[-1].settimeout(LONG_S)
    assert clients[-1].recv(100) == b"oak" and echoes(clients[-1], b"elm")
    clients[-1].close()


class Broken:
    """Raises one error after the other in place of a connection."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    async def accept(self) -> anyio.abc.SocketStream:
        raise anyio.BrokenResourceError from OSError(self.numbers.pop(0), "none")


@pytest.mark.anyio
async def test_a_client_that_has_gone_is_passed_over_and_a_listener_that_is_broken_raises() -> None:
    broken = Broken(errno.ECONNABORTED, errno.ENFILE, errno.EPROTO, errno.EBADF, errno.EMFILE)

    async def none(_: Any) -> None:
        raise AssertionError

    with anyio.fail_after(LONG_S), pytest.raises(BaseExceptionGroup) as caught:
        await accepting.serve(broken, none)
    assert caught.group_contains(anyio.BrokenResourceError) and broken.numbers == [errno.EMFILE]


class Short:
    def accept(self) -> tuple[socket.socket, Any]:
        raise OSError(errno.EMFILE, "too many open files")


def test_the_server_of_metrics_pauses_before_it_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    server = ScrapeServer(("127.0.0.1", 0), lambda *_: [], lambda _: None)
    with server.socket:
        monkeypatch.setattr(server, "socket", Short())
        monkeypatch.setattr(scrapes.time, "sleep", paused.append)  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="too many open files"):
            server.get_request()
    assert paused == [accepting.PAUSE_S]
