"""The runner's socket that connects to a gateway on another host."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from orchestrator.deploy.embedded.ports import free_port
from orchestrator.runner.bridge import bridged
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Runners use uvloop, whose sockets can do less."""
    return "asyncio", {"use_uvloop": request.param}


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


@dataclass
class Seen:
    """The connections of a server in the order in which they came, and the questions that it has not answered."""

    came: list[anyio.abc.SocketStream] = field(default_factory=list)
    open_questions: int = 0


@asynccontextmanager
async def holding() -> AsyncIterator[tuple[int, Seen]]:
    """A server that echoes each chunk but a question."""
    seen = Seen()

    async def echo(stream: anyio.abc.SocketStream) -> None:
        seen.came.append(stream)
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with stream:
                async for chunk in stream:
                    if chunk == b"question":
                        seen.open_questions += 1
                    else:
                        await stream.send(chunk)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        yield int(listener.extra(anyio.abc.SocketAttribute.local_port)), seen
        tasks.cancel_scope.cancel()


async def ends(stream: anyio.abc.SocketStream) -> bool:
    try:
        await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return True
    return False


async def test_a_connection_too_many_is_closed_and_the_others_go_on(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    async with (
        holding() as (port, seen),
        bridged(socket, lambda: ("127.0.0.1", port), most=3),
        _Client(socket, seen) as client,
    ):
        with anyio.fail_after(60):
            silent = await client.connects()
            asks, answered = await client.asks(), await client.was_answered()
            assert await ends(await client.connects()), "three are open"
            await silent.aclose()
            new = await eventually(client.is_answered)
            assert new is not None
            for each in (asks, answered, new):
                await each.send(b"still")
                assert await each.receive() == b"still"


async def test_a_connection_that_the_gateway_ends_is_ended_here_though_its_client_keeps_it_open(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "s"
    async with (
        holding() as (port, seen),
        bridged(socket, lambda: ("127.0.0.1", port)),
        _Client(socket, seen) as client,
    ):
        with anyio.fail_after(60):
            stream = await client.was_answered()
            await seen.came[0].aclose()
            assert await ends(stream)
            with pytest.raises(anyio.BrokenResourceError):
                while True:
                    await stream.send(b"more")
                    await anyio.lowlevel.checkpoint()


class _Client:
    """Opens connections, and closes them at the end."""

    def __init__(self, socket: Path, seen: Seen) -> None:
        self._socket, self._seen, self._open = socket, seen, AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def connects(self) -> anyio.abc.SocketStream:
        return await self._open.enter_async_context(await anyio.connect_unix(self._socket))

    async def was_answered(self) -> anyio.abc.SocketStream:
        stream = await self.connects()
        await stream.send(b"hello")
        assert await stream.receive() == b"hello"
        return stream

    async def is_answered(self) -> anyio.abc.SocketStream | None:
        """A new connection; None if it is closed."""
        stream = await self.connects()
        try:
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return None
        return stream

    async def asks(self) -> anyio.abc.SocketStream:
        """A connection whose question has arrived and is not answered."""
        stream, before = await self.was_answered(), self._seen.open_questions
        await stream.send(b"question")
        await eventually(lambda: self._seen.open_questions > before)
        return stream
