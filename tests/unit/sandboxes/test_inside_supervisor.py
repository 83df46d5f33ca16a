"""The supervisor of a pod towards its owner and its programs: its first message, and the fate of connections while the owner is away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxes.inside.frames import Reader, frame
from sandboxes.inside.pipe import SOCKET
from sandboxes.inside.supervisor import GATEWAY, Supervisor
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def supervisor(root: Path) -> AsyncIterator[Callable[[str], Awaitable[Line]]]:
    """A supervisor that leads the gateway's connections over its owner's line. Yields a function that connects to a place of the supervisor."""
    session = {"uid": 1000, "grace_s": 60, "first_s": 60, "gateway": "", "env": {}}
    task = asyncio.create_task(Supervisor(session, "", root).run())
    lines: list[Line] = []

    async def to(inside: str) -> Line:
        lines.append(await asyncio.open_unix_connection(str(root / inside.lstrip("/"))))
        return lines[-1]

    try:
        with anyio.fail_after(60):
            await eventually(lambda: (root / GATEWAY.lstrip("/")).exists())
            yield to
    finally:
        task.cancel()
        await asyncio.wait([task])
        for _, writer in lines:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def received(line: Line, frames: Reader) -> list[dict[str, Any]]:
    """The messages of the next frames."""
    found: list[dict[str, Any]] = []
    while not found:
        data = await line[0].read(1 << 16)
        assert data, "the line is lost"
        found = [message for message, _ in frames.feed(data)]
    return found


async def test_the_first_word_on_every_line_is_the_supervisors_greeting(root: Path) -> None:
    async with supervisor(root) as to:
        for _ in range(2):
            owner = await to(SOCKET)
            assert await received(owner, Reader()) == [{"hello": True}]


async def test_connections_end_with_the_line_that_they_went_over_and_are_refused_while_there_is_none(
    root: Path,
) -> None:
    async with supervisor(root) as to:
        early = await to(GATEWAY)
        assert await early[0].read() == b""
        owner, frames = await to(SOCKET), Reader()
        assert await received(owner, frames) == [{"hello": True}]
        program = await to(GATEWAY)
        assert [message["open"] for message in await received(owner, frames)] == [True]
        owner[1].close()
        assert await program[0].read() == b""
        late = await to(GATEWAY)
        assert await late[0].read() == b""


async def test_connections_end_when_another_line_takes_the_place_of_theirs(root: Path) -> None:
    async with supervisor(root) as to:
        first, frames = await to(SOCKET), Reader()
        assert await received(first, frames) == [{"hello": True}]
        program = await to(GATEWAY)
        [opened] = await received(first, frames)
        second, second_frames = await to(SOCKET), Reader()
        assert await program[0].read() == b""
        assert (await received(second, second_frames))[0] == {"hello": True}
        # Data for a closed connection are dropped; a new connection works.
        second[1].write(frame({"op": "data", "stream": opened["stream"]}, b"late"))
        again = await to(GATEWAY)
        [opened] = await received(second, second_frames)
        second[1].write(frame({"op": "data", "stream": opened["stream"]}, b"reply"))
        assert await again[0].read(5) == b"reply"
