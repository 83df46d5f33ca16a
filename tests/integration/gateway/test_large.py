"""Large requests: refused by their size where they cannot fit, read off the event loop where they may, and counted."""

import gzip
import json
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import aiohttp
import anyio
import pytest

from orchestrator.gateway.completions.offload import SMALL
from orchestrator.gateway.http.bodies import UNPACKED, read_apart
from orchestrator.gateway.http.encodings import decoded
from orchestrator.gateway_client import SessionBudget
from tests.integration.gateway.rig import Rig
from tests.integration.gateway.wires_rig import PATHS, ask, bodies, message_of
from tests.unit.gateway.dialect_rig import decoded as decoded_events
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

FULL = ["response.created", "response.in_progress", "error", "response.failed"]
LONG_WORD = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo "  # one token


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_no_context_holds_is_refused_before_it_is_read(rig: Rig, path: str) -> None:
    rollout, session = await rig.open()
    async with aiohttp.ClientSession() as http:
        headers = {"Content-Length": str(20_000_000), "Content-Type": "application/json"}

        async def slowly() -> AsyncIterator[bytes]:
            yield b"{"
            await anyio.sleep_forever()

        with anyio.fail_after(15):
            async with http.post(
                rig.gateway.url + session.path + path, data=slowly(), headers=headers
            ) as answer:
                status, reply = answer.status, await answer.json()
    words = message_of(path, reply)
    assert status == 400 and words.startswith("prompt is too long"), words
    assert "2042 tokens" in words and "bytes cannot fit" in words
    status, reply, _ = await ask(rig, session.path + path, bodies("oak")[path])
    assert status == 200, reply
    assert (await rig.seal(rollout)).exhausted is None


async def too_long_to_read(rig: Rig, url: str, accept: str) -> tuple[int, bytes]:
    """(status, body) of the refusal of a body that is too long, by its announced length."""
    announced = {"Content-Length": str(20_000_000), "Content-Type": "application/json", "Accept": accept}

    async def beginning() -> AsyncIterator[bytes]:
        yield b"{"
        await anyio.sleep_forever()

    async with aiohttp.ClientSession() as http:
        with anyio.fail_after(60):
            async with http.post(rig.gateway.url + url, data=beginning(), headers=announced) as answer:
                return answer.status, await answer.read()


async def test_a_streamed_response_whose_body_fits_in_no_context_is_refused_inside_its_stream(
    rig: Rig,
) -> None:
    _, session = await rig.open()
    url = session.path + "/responses"
    status, body = await too_long_to_read(rig, url, "text/event-stream")
    many = {"model": "m", "input": [_user("x"), {"role": "assistant", "content": "y"}] * 12_000}
    async with (
        aiohttp.ClientSession() as http,
        http.post(rig.gateway.url + url, json={**many, "stream": True}) as answer,
    ):
        refusals = [(status, body), (answer.status, await answer.read())]
    for status, body in refusals:
        events = decoded_events([body])
        assert status == 200
        assert [kind for kind, _ in events] == FULL
        assert events[-1][1]["response"]["error"]["code"] == "context_length_exceeded"
        assert events[2][1]["message"].startswith("prompt is too long")
    for path, request in ((url, many), (url + "/input_tokens", {**many, "stream": True})):
        status, reply, _ = await ask(rig, path, request)
        assert status == 400 and message_of("/responses", reply).startswith("prompt is too long")
    for path in ("/chat/completions", "/messages", "/responses/input_tokens"):
        status, body = await too_long_to_read(rig, session.path + path, "text/event-stream")
        assert status == 400 and message_of(path, json.loads(body)).startswith("prompt is too long")


async def test_a_body_without_a_length_is_refused_once_too_much_of_it_has_come(rig: Rig) -> None:
    _, session = await rig.open()
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b" " * (1 << 16)

    with anyio.fail_after(15):
        async with aiohttp.ClientSession() as http:
            try:
                async with http.post(
                    f"{rig.gateway.url}{session.path}/chat/completions", data=endless()
                ) as answer:
                    assert answer.status == 400
            except aiohttp.ClientError:
                pass  # the connection is closed while the client still sends
    status, reply, _ = await ask(rig, session.path + "/chat/completions", bodies("oak")["/chat/completions"])
    assert status == 200, reply


async def test_a_prompt_far_longer_than_the_context_is_not_rendered(rig: Rig) -> None:
    _, session = await rig.open()
    text = "oak elm " * 100_000
    status, reply, _ = await ask(rig, session.path + "/messages/count_tokens", {"messages": [_user(text)]})
    assert status == 400 and "prompt is too long" in reply["error"]["message"]
    many = {"messages": [_user("x"), {"role": "assistant", "content": "y"}] * 12_000, "max_tokens": 4}
    assert len(json.dumps(many)) < 2**20
    status, reply, _ = await ask(rig, session.path + "/messages", many)
    assert status == 400 and "prompt is too long" in reply["error"]["message"]


async def test_a_call_is_answered_while_a_large_request_of_another_session_is_read(rig: Rig) -> None:
    _, busy = await rig.open()
    _, other = await rig.open()
    ended: list[str] = []

    async def large() -> None:
        schema = {"type": "object", "properties": {"a": {"enum": [[]] * 200_000}}}
        tools = [{"name": "f", "input_schema": schema}]
        request = {"messages": [_user("oak")], "tools": tools}
        status, reply, _ = await ask(rig, busy.path + "/messages/count_tokens", json.dumps(request).encode())
        ended.append(f"large {status}")
        assert "prompt is too long" in reply["error"]["message"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(large)
        await eventually(lambda: rig.gateway.metrics.large._value.get(), within_s=30, every_s=0.001)
        status, _, _ = await ask(rig, other.path + "/chat/completions", bodies("oak")["/chat/completions"])
        ended.append(f"small {status}")
    assert ended == ["small 200", "large 400"]


async def test_a_large_request_is_in_flight_and_waits_for_the_platform_while_the_gateway_is_busy_with_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = anyio.Event()

    async def behind_others(*of: Any, **options: Any) -> Any:
        await go_on.wait()
        return await read_apart(*of, **options)

    monkeypatch.setattr("orchestrator.gateway.http.app.read_apart", behind_others)
    rollout, session = await rig.open()
    activity = partial(rig.admin.activity, rollout=rollout, attempt=1, epoch=1)
    request = json.dumps({**bodies("oak")["/chat/completions"], "metadata": "x" * 2**20}).encode()

    async def call() -> None:
        status, reply, _ = await ask(rig, session.path + "/chat/completions", request)
        assert status == 200, reply

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        seen = await eventually(activity, lambda seen: seen.in_flight == 1 and seen.queued_s >= 0.2)
        assert seen.calls == 0 and seen.held_s >= seen.queued_s and seen.undecided_s == 0
        tasks.cancel_scope.cancel()
    seen = await eventually(activity, lambda seen: seen.in_flight == 0)
    queued_s = seen.queued_s
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await eventually(activity, lambda seen: seen.in_flight == 1 and seen.queued_s > queued_s)
        go_on.set()
    seen = await activity()
    assert seen.in_flight == 0 and seen.calls == 1 and seen.queued_s > queued_s


async def test_a_repeated_large_request_stops_no_clock_while_it_is_rendered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout, session = await rig.open()
    in_flight = list[int]()

    async def in_thread(work: Callable[[], Any], limiter: anyio.CapacityLimiter) -> Any:
        in_flight.append((await rig.admin.activity(rollout=rollout, attempt=1, epoch=1)).in_flight)
        return work()

    monkeypatch.setattr("orchestrator.gateway.completions.offload._in_thread", in_thread)
    question = bodies(LONG_WORD * (SMALL // len(LONG_WORD) + 1))["/chat/completions"]
    for retries in ("0", "1"):
        status, reply, _ = await ask(
            rig, session.path + "/chat/completions", question, **{"x-stainless-retry-count": retries}
        )
        assert status == 200, reply
    assert in_flight == [1, 0], "no budget refuses an equal request"


async def test_a_large_request_that_fits_is_recorded_as_it_was_sent(rig: Rig) -> None:
    rig.start_ingest()
    rollout, session = await rig.open()
    for extra in (0, 2**20 - 60_000):  # rendered in a thread; read in another process as well
        request = {**bodies(f"{extra} " + LONG_WORD * 400)["/chat/completions"], "metadata": "x" * extra}
        status, reply, _ = await ask(rig, session.path + "/chat/completions", request)
        assert status == 200, reply
    state, _ = rig.proxy.sent[0]
    assert 400 < len(state) < 600
    stored = await rig.stored(rollout, 2)
    assert [list(step.full[: step.state_len]) for step in stored] == [
        list(sent) for sent, _ in rig.proxy.sent
    ]


async def test_large_requests_count_whatever_becomes_of_them(rig: Rig) -> None:
    rollout, session = await rig.open(budget=SessionBudget(max_turns=1, max_context=2048))
    path, request = session.path + "/messages/count_tokens", {"messages": [_user(LONG_WORD * 400)]}
    answers = [await ask(rig, path, {"messages": [_user("oak")]}) for _ in range(9)]
    assert {status for status, _, _ in answers} == {200}, "a small one costs nothing"
    answers = [await ask(rig, path, request) for _ in range(8)]
    assert {status for status, _, _ in answers} == {200}
    status, reply, _ = await ask(rig, path, request)
    assert status == 400 and "(turns) is used up" in reply["error"]["message"]
    assert (await rig.seal(rollout)).exhausted is None, "asking for a count does not end the conversation"


async def test_a_large_request_that_is_refused_as_it_is_read_counts_as_well(rig: Rig) -> None:
    rollout, session = await rig.open(budget=SessionBudget(max_turns=1, max_context=2048))
    wrong = {"messages": [_user("x" * 30_000), {"role": "unknown", "content": "y"}], "max_tokens": 4}
    replies = [await ask(rig, session.path + "/messages", wrong) for _ in range(9)]
    assert all(
        status == 400 and "unknown role" in answer["error"]["message"] for status, answer, _ in replies[:8]
    )
    assert "turns" in replies[8][1]["error"]["message"]
    assert (await rig.seal(rollout)).exhausted == "turns"


async def test_compressed_bodies_of_one_session_are_read_one_at_a_time_and_few_may_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rollout, greedy), (_, other) = await rig.open(), await rig.open()
    started, go_on = list[int](), threading.Event()

    def slow(raw: bytes, names: list[str], most: int) -> bytes:
        started.append(len(raw))
        assert go_on.wait(60)
        return decoded(raw, names, most)

    monkeypatch.setattr("orchestrator.gateway.http.bodies.decoded", slow)
    path, question = "/chat/completions", bodies("oak")["/chat/completions"]
    packed = gzip.compress(json.dumps(question | {"metadata": secrets.token_hex(2 * UNPACKED)}).encode())
    statuses: list[int] = []

    async def ask_packed() -> None:
        status, reply, _ = await ask(rig, greedy.path + path, packed, **{"Content-Encoding": "gzip"})
        assert status == 200 or "8 large requests of this session are being read" in reply["error"]["message"]
        statuses.append(status)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask_packed)
        await eventually(lambda: len(statuses) == 12 and started)
        assert len(started) == 1
        seen = await rig.admin.activity(rollout=rollout, attempt=1, epoch=1)
        assert (seen.in_flight, seen.queued_s) == (0, 0.0), "they cost no budget, so they stop no clock"
        status, reply, _ = await ask(rig, other.path + path, question)
        assert status == 200, reply
        go_on.set()
    assert sorted(statuses) == [200] * 8 + [503] * 12


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
