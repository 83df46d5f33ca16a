"""Connections and bodies that do not end: those of one session keep no other session from the gateway."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import anyio
import anyio.abc
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.sessions.registry import LOOKUPS
from orchestrator.gateway.sessions.store import SessionStore, StoredSession
from orchestrator.runtime import http_connections
from orchestrator.settings.timeouts import Timeouts, use
from tests.integration.gateway.rig import Policies, Rig, open_rig
from tests.integration.gateway.wires_rig import PATHS, ask, bodies, message_of
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

MOST = 20


@pytest.fixture(params=[{}], ids=["default"])
async def rig(
    request: pytest.FixtureRequest,
    database_url: str,
    nats_server: EmbeddedNats,
    server_url: str,
    policies: Policies,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Rig]:
    monkeypatch.setattr(http_connections, "CONNECTIONS", MOST)
    with use(Timeouts(**request.param)):
        async with open_rig(database_url, nats_server.url, server_url, policies, tmp_path) as rig:
            await rig.publish(0)
            yield rig


short = pytest.mark.parametrize(
    "rig", [{"request_head_s": 0.3, "request_body_s": 0.3}], indirect=True, ids=["short"]
)


async def connect(rig: Rig) -> anyio.abc.SocketStream:
    url = urlsplit(rig.gateway.url)
    assert url.hostname is not None and url.port is not None
    return await anyio.connect_tcp(url.hostname, url.port)


def head(path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


async def everything(stream: anyio.abc.ByteReceiveStream) -> bytes:
    """The bytes that arrive until the other side closes."""
    found = b""
    with anyio.fail_after(60):
        while True:
            try:
                found += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return found


@short
@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_trickles_is_given_up_in_the_words_of_its_wire(rig: Rig, path: str) -> None:
    _, session = await rig.open()
    async with await connect(rig) as stream:
        await stream.send(head(session.path + path, 100) + b"{")
        answer = await everything(stream)
    status, _, reply = answer.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 408 ")
    assert (
        message_of(path, json.loads(reply)) == "the body has not arrived within 0.3 s: send all of it at once"
    )


@short
@pytest.mark.parametrize("sent", [b"", b"POST /", b"POST / HTTP/1.1\r\nHost: a\r\n"])
async def test_a_connection_that_sends_no_request_is_closed(rig: Rig, sent: bytes) -> None:
    async with await connect(rig) as stream:
        if sent:
            await stream.send(sent)
        assert await everything(stream) == b""


@short
async def test_a_connection_whose_second_request_does_not_arrive_is_closed(rig: Rig) -> None:
    async with await connect(rig) as stream:
        await stream.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        await stream.send(b"POST / HTTP/1.1\r\nX-Slow: ")
        assert b"HTTP/1.1" not in await everything(stream)


async def test_bodies_of_one_session_that_do_not_arrive_keep_no_other_session_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.gateway.sessions.session.WAIT_TURN", 8)
    (_, slow), (_, other) = await rig.open(), await rig.open()
    async with AsyncExitStack() as stack:
        for _ in range(8):
            stream = await stack.enter_async_context(await connect(rig))
            await stream.send(head(f"{slow.path}/chat/completions", 100) + b"{")

        async def refused() -> bool:
            status, reply, _ = await ask(rig, f"{slow.path}/chat/completions", b"{")
            return (
                status == 503 and "8 requests of this session have not arrived" in reply["error"]["message"]
            )

        await eventually(refused)
        status, reply, _ = await ask(
            rig, f"{other.path}/chat/completions", bodies("oak")["/chat/completions"]
        )
        assert status == 200, reply
    await eventually(lambda: not_refused(rig, slow.path))


async def not_refused(rig: Rig, path: str) -> bool:
    status, _, _ = await ask(rig, f"{path}/chat/completions", b"{")
    return status == 400


async def test_connections_without_end_close_one_another_and_no_other_session_notices(rig: Rig) -> None:
    _, session = await rig.open()
    socket_path = str(rig.settings.socket_path)
    closed: list[int] = []

    async def held(number: int) -> None:
        stream = await anyio.connect_unix(socket_path)
        async with stream:
            await stream.send(b"POST / HTTP/1.1\r\n")
            if not await everything_or_held(stream):
                closed.append(number)

    async with anyio.create_task_group() as flood:
        for number in range(5 * MOST):
            flood.start_soon(held, number)
        await eventually(lambda: len(closed) >= 4 * MOST)
        connector = aiohttp.UnixConnector(socket_path)
        async with aiohttp.ClientSession(connector=connector) as http:
            for _ in range(3):  # each on the same connection or on a new one: both work
                body = bodies("oak")["/chat/completions"]
                async with http.post(f"http://gateway{session.path}/chat/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()
        flood.cancel_scope.cancel()


async def everything_or_held(stream: anyio.abc.ByteReceiveStream) -> bytes:
    try:
        return await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
        return b""


@pytest.mark.parametrize("path", PATHS)
async def test_equal_requests_of_one_session_share_a_call_up_to_a_limit_and_keep_no_other_session_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("orchestrator.gateway.completions.service.WAIT_REPLY", 8)
    (_, greedy), (_, other) = await rig.open(), await rig.open()
    rig.proxy.stops = [2]  # the shared call stands still
    question, replies = bodies("oak")[path], list[tuple[int, str]]()

    async def equal() -> None:
        status, reply, _ = await ask(rig, greedy.path + path, question)
        replies.append((status, "" if status == 200 else message_of(path, reply)))

    async with anyio.create_task_group() as tasks:
        for _ in range(MOST - 2):
            tasks.start_soon(equal)
        await eventually(lambda: len(replies) == MOST - 2 - 8)
        assert set(replies) == {(503, "8 requests of this session wait for their replies: try again")}
        status, reply, _ = await ask(rig, greedy.path + path, {**question, "stream": True})
        assert status == 503, reply
        status, reply, _ = await ask(rig, other.path + path, question)
        assert status == 200, reply
        await eventually(lambda: rig.proxy.standing)
        rig.proxy.go_on()
    assert [status for status, _ in replies].count(200) == 8


async def test_unknown_tokens_in_any_number_keep_no_session_from_being_opened_used_or_sealed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_token, looked_up, go_on = SessionStore.by_token, list[bytes](), anyio.Event()

    async def slow(store: SessionStore, digest: bytes) -> StoredSession | None:
        looked_up.append(digest)
        await go_on.wait()  # a data pool that is slow for as long as the test needs
        return await by_token(store, digest)

    monkeypatch.setattr(SessionStore, "by_token", slow)
    statuses: list[int] = []

    async def stranger(number: int) -> None:
        status, _, _ = await ask(rig, f"/s/unknown-{number}/v1/chat/completions", b"{}")
        statuses.append(status)

    async with anyio.create_task_group() as strangers:
        for number in range(MOST // 2):
            strangers.start_soon(stranger, number)
        await eventually(lambda: len(looked_up) == LOOKUPS)
        with anyio.fail_after(60):
            rollout, session = await rig.open()
            status, reply, _ = await ask(
                rig, f"{session.path}/chat/completions", bodies("oak")["/chat/completions"]
            )
            assert status == 200, reply
            await rig.seal(rollout)
        assert len(looked_up) == LOOKUPS and not statuses
        go_on.set()
    assert statuses == [401] * (MOST // 2)
