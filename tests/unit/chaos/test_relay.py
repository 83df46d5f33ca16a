"""A relay is a wire until a fault is set, and then it does exactly that fault."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from ops.lab.chaos.plan import FaultKind
from ops.lab.chaos.relay import (
    WITNESS,
    Relay,
    listening,
    split,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(200)]
PATIENCE_S = 60.0


async def echo(stream: ByteStream) -> None:
    """Introduces itself at once, as NATS does; then echoes everything."""
    async with stream:
        try:
            await stream.send(b"hello ")
            while True:
                await stream.send(await stream.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return


@asynccontextmanager
async def before_an_echo() -> AsyncIterator[Relay]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks, listening(("127.0.0.1", port)) as relay:
        tasks.start_soon(listener.serve, echo)
        yield relay
        tasks.cancel_scope.cancel()


async def received(stream: ByteStream, length: int) -> bytes:
    found = b""
    with anyio.fail_after(PATIENCE_S):
        while len(found) < length:
            found += await stream.receive()
    return found


async def test_it_passes_on_the_bytes_of_either_side_whichever_speaks_first() -> None:
    async with before_an_echo() as relay, await anyio.connect_tcp("127.0.0.1", relay.port) as client:
        assert await received(client, 6) == b"hello "
        await client.send(b"x" * 300_000)
        assert await received(client, 300_000) == b"x" * 300_000


async def test_a_stall_loses_nothing_and_ends() -> None:
    async with before_an_echo() as relay, await anyio.connect_tcp("127.0.0.1", relay.port) as client:
        await received(client, 6)
        relay.part(FaultKind.STALL, delay_s=0, seed=0)
        assert relay.met == 0, "nothing was on its way"
        await client.send(b"held")
        await eventually(lambda: relay.met == 1)
        with anyio.move_on_after(0.2) as limit:
            await client.receive()
        assert limit.cancelled_caught and relay.met == 1
        relay.pass_on()
        assert await received(client, 4) == b"held"


async def test_a_cut_ends_connections_and_refuses_new_ones_until_it_ends() -> None:
    async with before_an_echo() as relay:
        async with await anyio.connect_tcp("127.0.0.1", relay.port) as client:
            await received(client, 6)
            assert relay.connections == 1
            relay.part(FaultKind.CUT, delay_s=0, seed=0)
            with anyio.fail_after(PATIENCE_S), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await client.receive()
        async with await anyio.connect_tcp("127.0.0.1", relay.port) as client:
            with anyio.fail_after(PATIENCE_S), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await client.receive()
        assert relay.met == 2, "one was ended, one refused"
        relay.pass_on()
        async with await anyio.connect_tcp("127.0.0.1", relay.port) as client:
            assert await received(client, 6) == b"hello "


async def test_a_delay_holds_every_piece_for_its_time() -> None:
    async with before_an_echo() as relay, await anyio.connect_tcp("127.0.0.1", relay.port) as client:
        await received(client, 6)
        relay.part(FaultKind.DELAY, delay_s=0.1, seed=0)
        began = anyio.current_time()
        await client.send(b"slow")
        assert await received(client, 4) == b"slow"
        assert anyio.current_time() - began >= 0.2 and relay.met == 2  # there and back


async def test_a_service_that_is_away_looks_as_it_does_without_a_relay() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    async with listening(address) as relay, await anyio.connect_tcp("127.0.0.1", relay.port) as client:
        with anyio.fail_after(PATIENCE_S), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await client.receive()


async def test_the_witness_receives_its_lines_even_while_the_connection_is_cut(tmp_path: Path) -> None:
    witnessed: list[bytes] = []
    path = tmp_path / "gateway.sock"
    async with listening(path=path, hear=witnessed.append) as relay:
        relay.part(FaultKind.CUT, delay_s=0, seed=0)
        async with await anyio.connect_unix(path) as client:
            await client.send(WITNESS + b"one\n")
            await client.send(b"two\n")
        await eventually(lambda: witnessed, within_s=PATIENCE_S)
    assert witnessed == [b"one\ntwo\n"] and path.stat().st_mode & 0o666 == 0o666


def messages(count: int) -> list[bytes]:
    plain = [b"MSG a.%d 1 3\r\nx\r\n\r\n" % n for n in range(count)]
    headed = [b"HMSG b 2 $JS.ACK.x 4 %d\r\nNATSMSG \r\n" % len(b"NATSMSG ")]
    return [*plain, *headed]


def test_messages_are_found_whatever_their_bodies_hold() -> None:
    parts = [b"PING\r\n", *messages(3), b"+OK\r\n"]
    assert split(b"".join(parts)) == (messages(3), [b"PING\r\n", b"+OK\r\n"], True)


@pytest.mark.parametrize("cut", [1, 5, 12, 17])
def test_a_message_that_is_not_whole_yet_is_seen_to_be_so(cut: int) -> None:
    assert split(messages(1)[0][:cut])[2] is False


async def test_reordering_keeps_every_message_and_changes_their_order() -> None:
    sent = messages(6)

    async def speak(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"".join(sent))
            await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks, listening(("127.0.0.1", port)) as relay:
        tasks.start_soon(partial(listener.serve, speak))
        relay.part(FaultKind.REORDER, delay_s=0, seed=1)
        async with await anyio.connect_tcp("127.0.0.1", relay.port) as client:
            await client.send(b"SUB\r\n")
            found = await received(client, sum(map(len, sent)))
        assert relay.shuffles == 1
        tasks.cancel_scope.cancel()
    arrived, others, whole = split(found)
    assert (sorted(arrived), others, whole) == (sorted(sent), [], True) and arrived != sent


async def test_a_single_message_is_not_shuffled() -> None:
    async with before_an_echo() as relay, await anyio.connect_tcp("127.0.0.1", relay.port) as client:
        await received(client, 6)
        relay.part(FaultKind.REORDER, delay_s=0, seed=1)
        [alone] = messages(1)[:1]
        await client.send(alone)
        assert await received(client, len(alone)) == alone
        assert relay.shuffles == 0
