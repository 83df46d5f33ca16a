"""How a reply travels on each wire: at once, with signs of life, once; and the record of a reply that does not arrive."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.http import app
from orchestrator.gateway.http.dialects.base import KEEP_ALIVE_S, RETRY_HEADER
from tests.integration.gateway.rig import PATIENCE_S, Policies, Rig, held_generation, open_rig, watched_calls
from tests.integration.gateway.wires_rig import PATHS, ask, bodies
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
wires = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
async def slow(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    """Calls of any length: the random policy's likeliest tokens go round in circles and never end."""
    async with open_rig(
        database_url, nats_server.url, server_url, policies, tmp_path, max_new_tokens=1000, temperature=0.0
    ) as rig:
        await rig.publish(0)
        yield rig


@wires
async def test_a_stream_begins_at_once_shows_life_and_ends_as_its_wire_wants_when_the_session_is_sealed(
    slow: Rig, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KEEP_ALIVE_S <= 10, "Claude Code gives up on a stream that is silent for longer"
    monkeypatch.setattr(app, "KEEP_ALIVE_S", 0.02)
    rollout, session = await slow.open()
    opening, life, ending = {
        "/chat/completions": (b'"role":"assistant"', b": ", b"data: [DONE]\n\n"),
        "/responses": (
            b"event: response.created\n",
            b"event: response.in_progress\n",
            b"event: response.failed\n",
        ),
        "/messages": (b"event: message_start\n", b"event: ping\n", b"event: error\n"),
    }[path]
    body = bodies("oak", stream=True, max_tokens=1000)[path]
    received = b""
    slow.proxy.stops = [10]
    async with (
        aiohttp.ClientSession() as http,
        http.post(slow.gateway.url + session.path + path, json=body) as answer,
    ):
        assert answer.status == 200 and answer.content_type == "text/event-stream"
        with anyio.fail_after(PATIENCE_S):
            first = await answer.content.readany()
            assert opening in first
            received += first
            while received.count(life) < 4 or not slow.proxy.standing:
                received += await answer.content.readany()
                assert not answer.content.at_eof(), received
        await slow.seal(rollout)
        received += await answer.content.read()
    assert ending in received.rpartition(life)[2] or ending in received[-2000:]
    assert b"session is over" in received and (await slow.seal(rollout)).steps == 0


def content_of(body: Any) -> Any:
    """The text of a whole reply, on any wire."""
    for key in ("choices", "output", "content"):
        if key in body:
            return body[key]
    raise AssertionError(body)


@wires
async def test_a_retry_of_a_streamed_turn_gets_the_recorded_reply_streamed_or_not(
    rig: Rig, path: str
) -> None:
    rollout, session = await rig.open()
    url = session.path + path
    async with (
        aiohttp.ClientSession() as http,
        http.post(rig.gateway.url + url, json=bodies("oak", stream=True)[path]) as answer,
    ):
        stream = await answer.read()
    retry = {RETRY_HEADER: "1"}
    status, whole, _ = await ask(rig, url, bodies("oak")[path], **retry)
    assert status == 200 and content_of(whole) == content_of(
        (await ask(rig, url, bodies("oak")[path], **retry))[1]
    )
    async with (
        aiohttp.ClientSession() as http,
        http.post(rig.gateway.url + url, json=bodies("oak", stream=True)[path], headers=retry) as answer,
    ):
        again = await answer.read()
    assert again.count(b"data: ") == stream.count(b"data: ")
    assert len(rig.proxy.sent) == 1 and (await rig.seal(rollout)).steps == 1


@wires
async def test_equal_questions_in_flight_share_one_call_streamed_or_not(
    rig: Rig, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, released = watched_calls(monkeypatch), await held_generation(rig)
    rollout, session = await rig.open()
    statuses: list[int] = []

    async def post(stream: bool) -> None:
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                f"{session.base_url}{path}", json=bodies("oak", **({"stream": True} if stream else {}))[path]
            ) as answer,
        ):
            await answer.read()
            statuses.append(answer.status)

    async with anyio.create_task_group() as tasks:
        for stream in (False, True, False):
            tasks.start_soon(post, stream)
        await eventually(lambda: calls and calls[0].waiting == 3)
        released.set()
    assert statuses == [200, 200, 200]
    assert len(rig.proxy.sent) == 1 and (await rig.seal(rollout)).steps == 1


@wires
async def test_a_stream_that_its_reader_leaves_is_given_up_and_recorded_as_undelivered(
    slow: Rig, path: str
) -> None:
    slow.start_ingest()
    rollout, session = await slow.open()
    body = bodies("oak", stream=True, max_tokens=1000)[path]
    slow.proxy.stops = [10]
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{session.base_url}{path}", json=body) as answer,
    ):
        assert await answer.content.readany()
        await eventually(lambda: slow.proxy.standing)
        answer.close()
    await eventually(lambda: not slow.proxy.busy)
    seal = await slow.seal(rollout)
    assert seal.steps <= 1 and [mark.reason for mark in seal.marks] == ["undelivered"] * seal.steps
