"""The runner's socket that connects to a gateway on another host."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from orchestrator.deploy.embedded.ports import free_port
from orchestrator.runner.bridge import bridged

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """A server that sends everything twice when its client has ended."""

    async def echo(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            request = b"".join([chunk async for chunk in stream])
            await stream.send(request + request)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        yield int(listener.extra(anyio.abc.SocketAttribute.local_port))
        tasks.cancel_scope.cancel()


async def reply_to(socket: Path, what: bytes) -> bytes:
    async with await anyio.connect_unix(socket) as stream:
        try:
            await stream.send(what)
            await stream.send_eof()
            return b"".join([chunk async for chunk in stream])
        except (anyio.BrokenResourceError, OSError):
            return b""


async def test_bytes_and_the_end_of_each_side_pass_through_for_many_at_once(tmp_path: Path) -> None:
    socket, found = tmp_path / "s", []
    async with echoing() as port, bridged(socket, lambda: ("127.0.0.1", port)):
        assert socket.stat().st_mode & 0o777 == 0o666

        async def talk(number: int) -> None:
            what = b"%d" % number * 100_000
            found.append(await reply_to(socket, what) == what * 2)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(talk, number)
    assert found == [True] * 8 and not socket.exists()


async def test_a_gateway_that_is_away_or_not_known_yet_closes_the_connection_and_one_that_comes_back_is_found(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "s"
    target: list[tuple[str, int] | None] = [None]
    async with bridged(socket, lambda: target[0]):
        with anyio.fail_after(60):
            assert await reply_to(socket, b"a") == b""
            target[0] = ("127.0.0.1", free_port())
            assert await reply_to(socket, b"b") == b""
            async with echoing() as port:
                target[0] = ("127.0.0.1", port)
                assert await reply_to(socket, b"c") == b"cc"


async def test_what_a_killed_runner_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    async with echoing() as port, bridged(tmp_path / "s", lambda: ("127.0.0.1", port)):
        with anyio.fail_after(60):
            assert await reply_to(tmp_path / "s", b"a") == b"aa"
