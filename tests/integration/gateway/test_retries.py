"""Harnesses that try again, leave, wait through a weight sync, or request too much: streamed and not."""

import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.completions.service import CompletionService
from orchestrator.gateway.problems import unavailable
from orchestrator.gateway.servers.pool import ServerPool
from orchestrator.gateway_client import OpenSession, SessionBudget
from tests.contract.rollout_server import running_server
from tests.integration.gateway.rig import (
    OpenRig,
    Policies,
    Rig,
    held_generation,
    open_rig,
    until_row,
    watched_calls,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
POLICY_VERSIONS = 2

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
async def rig(open_here: OpenRig) -> AsyncIterator[Rig]:
    """Calls take a while: the likeliest tokens never end."""
    async with open_here(
        sections={"gateway": {"body_limit_mb": 1}},
        max_new_tokens=400,
        temperature=0.0,
    ) as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].ready)
        yield rig


def body(text: str, stream: bool, **more: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [{"role": "user", "content": text}], "stream": stream, **more}


async def post(rig: Rig, session: OpenSession, request: Any, **headers: str) -> tuple[int, str]:
    """(status, the answer's text: the message, or the error's code and message)."""
    url = f"{rig.gateway.url}{session.path}/chat/completions"
    data = io.BytesIO(json.dumps(request).encode())
    headers["Content-Type"] = "application/json"
    async with aiohttp.ClientSession() as http, http.post(url, data=data, headers=headers) as answer:
        if answer.content_type == "text/event-stream":
            return answer.status, joined((await answer.read()).decode())
        reply = await answer.json()
        if "error" in reply:
            return answer.status, f"{reply['error']['code']}: {reply['error']['message']}"
        return answer.status, reply["choices"][0]["message"]["content"]


def joined(events: str) -> str:
    """The content of a complete stream."""
    lines = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def leave_once(rig: Rig, session: OpenSession, request: Any, ready: Callable[[], object]) -> None:
    """Send a request, leave once it is `ready`, and wait until the gateway has noticed."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post, rig, session, request)
        await eventually(ready)
        tasks.cancel_scope.cancel()
    await eventually(lambda: "/abort_request" in rig.proxy.seen)


@both_ways
async def test_an_undelivered_reply_is_served_to_the_next_equal_body_with_or_without_a_retry_header(
    rig: Rig, stream: bool
) -> None:
    rig.proxy.swallowed.add("/abort_request")  # the policy is faster than the abort
    released = rig.proxy.held["/generate"] = anyio.Event()
    rollout, session = await rig.open()
    request = body("oak", stream, max_tokens=60)
    await leave_once(rig, session, request, lambda: "/generate" in rig.proxy.seen)
    released.set()
    await until_row(rig, "SELECT 1 FROM sessions WHERE seal -> 'marks' -> '0' = '[\"undelivered\"]'")
    status, answer = await post(rig, session, request)
    assert status == 200 and answer and len(rig.proxy.requests) == 1
    await until_row(rig, "SELECT 1 FROM sessions WHERE seal -> 'marks' = '{}'")
    assert (await post(rig, session, request, **{"x-stainless-retry-count": "2"})) == (200, answer)
    seal = await rig.seal(rollout)
    assert (seal.steps, seal.marks) == (1, ()), "it was delivered in the end: it trains"


@both_ways
async def test_a_client_that_leaves_ends_the_call_upstream_and_requests_it_again_when_it_returns(
    rig: Rig, stream: bool
) -> None:
    rig.start_ingest()
    rollout, session = await rig.open()
    request = body("oak", stream, max_tokens=300)
    rig.proxy.stops = [10]
    await leave_once(rig, session, request, lambda: rig.proxy.standing)
    assert (await post(rig, session, request))[0] == 200
    seal = await rig.seal(rollout)
    steps = await rig.stored(rollout, seal.steps)
    assert len(rig.proxy.requests) == 2
    assert sorted(len(step.action) for step in steps) == [10, 300]
    cut = [step.idx for step in steps if len(step.action) == 10]
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [(cut[0], "undelivered")]


@both_ways
async def test_a_delivered_reply_is_repeated_for_a_retry_header_only(rig: Rig, stream: bool) -> None:
    rollout, session = await rig.open()
    request = body("oak", stream, max_tokens=8)
    first = await post(rig, session, request)
    assert await post(rig, session, request, **{"x-stainless-retry-count": "1"}) == first
    assert len(rig.proxy.requests) == 1
    await post(rig, session, request)
    assert len(rig.proxy.requests) == 2 and (await rig.seal(rollout)).steps == 2


@both_ways
async def test_a_retry_of_a_failed_call_is_not_served_an_earlier_sample_of_the_same_body(
    rig: Rig, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout, session = await rig.open()
    request, again = body("oak", stream, max_tokens=8), {"x-stainless-retry-count": "1"}
    await post(rig, session, request)
    generate = ServerPool.generate

    async def failing(*_: Any) -> Any:
        raise unavailable("every rollout server that was tried failed")

    monkeypatch.setattr(ServerPool, "generate", failing)
    async with aiohttp.ClientSession() as http:
        url = f"{rig.gateway.url}{session.path}/chat/completions"
        async with http.post(url, json=request) as answer:
            assert "every rollout server" in await answer.text()
    monkeypatch.setattr(ServerPool, "generate", generate)
    second = await post(rig, session, request, **again)
    assert second[0] == 200 and len(rig.proxy.requests) == 2
    assert await post(rig, session, request, **again) == second
    assert len(rig.proxy.requests) == 2 and (await rig.seal(rollout)).steps == 2


async def test_a_retry_of_a_request_that_was_refused_before_its_call_is_not_served_an_earlier_sample(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout, session = await rig.open()
    request, again = body("oak", False, max_tokens=8), {"x-stainless-retry-count": "1"}
    await post(rig, session, request)

    async def refusing(*_: Any, **__: Any) -> None:
        raise unavailable("8 large requests of this session are being read")

    with monkeypatch.context() as patched:
        patched.setattr(CompletionService, "prepare", refusing)
        assert (await post(rig, session, request))[0] == 503
    second = await post(rig, session, request, **again)
    assert second[0] == 200 and len(rig.proxy.requests) == 2
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.gateway.completions.service.WAIT_REPLY", 0)
        assert (await post(rig, session, request, **again))[0] == 503
    assert await post(rig, session, request, **again) == second
    assert len(rig.proxy.requests) == 2 and (await rig.seal(rollout)).steps == 2


async def test_a_call_that_was_given_up_and_ends_late_does_not_hide_a_newer_sample(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, generate, released = watched_calls(monkeypatch), ServerPool.generate, anyio.Event()
    rollout, session = await rig.open()
    request = body("oak", False, max_tokens=8)
    await post(rig, session, request)

    async def held(*_: Any) -> Any:
        await released.wait()
        raise unavailable("every rollout server that was tried failed")

    monkeypatch.setattr(ServerPool, "generate", held)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post, rig, session, request)
        await eventually(lambda: len(calls) == 2 and calls[1].waiting)
        tasks.cancel_scope.cancel()
    await eventually(lambda: not calls[1].waiting)
    monkeypatch.setattr(ServerPool, "generate", generate)
    newer = await post(rig, session, request)
    released.set()
    await eventually(lambda: calls[1].done)
    assert await post(rig, session, request, **{"x-stainless-retry-count": "1"}) == newer
    assert (await rig.seal(rollout)).steps == 2


@both_ways
async def test_a_call_continues_while_one_of_its_callers_still_waits(
    rig: Rig, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, released = watched_calls(monkeypatch), await held_generation(rig)
    rollout, session = await rig.open()
    request = body("oak", stream, max_tokens=200)
    got: list[tuple[int, str]] = []

    async def stay() -> None:
        got.append(await post(rig, session, request))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stay)
        await eventually(lambda: "/generate" in rig.proxy.seen)
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(post, rig, session, request)
            await eventually(lambda: calls[0].waiting == 2)
            leaving.cancel_scope.cancel()
        await eventually(lambda: calls[0].waiting == 1)
        released.set()
    assert calls[0] is calls[1]
    assert got[0][0] == 200 and len(rig.proxy.requests) == 1 and "/abort_request" not in rig.proxy.seen
    seal = await rig.seal(rollout)
    assert (seal.steps, seal.marks) == (1, ())


@both_ways
async def test_requests_are_held_through_a_weight_sync_not_refused(rig: Rig, stream: bool) -> None:
    rollout, session = await rig.open()
    released = rig.proxy.held["/update_weights_from_disk"] = anyio.Event()
    got: list[tuple[int, str]] = []

    async def ask() -> None:
        got.append(await post(rig, session, body("oak", stream, max_tokens=8)))

    async with anyio.create_task_group() as tasks:
        del rig.proxy.seen[:]
        await rig.publish(1)
        await eventually(lambda: "/update_weights_from_disk" in rig.proxy.seen)
        tasks.start_soon(ask)
        await eventually(
            lambda: rig.admin.activity(rollout=rollout, attempt=1, epoch=1),
            lambda seen: seen.in_flight,
        )
        assert not rig.proxy.requests and not got
        released.set()
    assert got[0][0] == 200
    seal = await rig.seal(rollout)
    assert (seal.versions, seal.marks) == ((1,), ()) and seal.queued_s > 0


async def test_a_call_given_up_while_it_waits_for_new_weights_keeps_what_was_sampled(rig: Rig) -> None:
    rig.start_ingest()
    rollout, session = await rig.open()
    released = rig.proxy.held["/update_weights_from_disk"] = anyio.Event()
    rig.proxy.stops = [10]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post, rig, session, body("oak", False))
        await eventually(lambda: rig.proxy.standing)
        del rig.proxy.seen[:]
        await rig.publish(1)
        await eventually(lambda: "/update_weights_from_disk" in rig.proxy.seen)
        tasks.cancel_scope.cancel()
    ((_, partial),) = rig.proxy.sent
    assert len(partial) == 10
    (step,) = await rig.stored(rollout, 1)
    assert step.action.tolist() == partial
    released.set()
    seal = await rig.seal(rollout)
    assert seal.steps == len(seal.marks) == len(rig.proxy.requests) == 1


@both_ways
async def test_a_body_over_the_limit_is_refused_in_one_sentence_and_the_session_lives_on(
    rig: Rig, stream: bool
) -> None:
    rollout, session = await rig.open()
    status, answer = await post(rig, session, body("oak " * 300_000, stream))
    assert (status, answer) == (413, "request_too_large: the body is larger than 1,048,576 bytes")
    assert (await post(rig, session, body("oak", stream, max_tokens=4)))[0] == 200
    assert (await rig.seal(rollout)).steps == 1


@both_ways
async def test_a_prompt_over_the_context_is_refused_and_the_harness_may_go_on_with_less(
    rig: Rig, stream: bool
) -> None:
    rollout, session = await rig.open(budget=SessionBudget(max_turns=20, max_context=10**6))
    status, answer = await post(rig, session, body("x" * 20_000, stream))
    assert status == 400 and "context" in answer and not rig.proxy.requests
    assert (await post(rig, session, body("oak", stream, max_tokens=4)))[0] == 200
    seal = await rig.seal(rollout)
    assert (seal.steps, seal.exhausted) == (1, None), "it made room"


async def test_a_prompt_that_nearly_fills_the_context_is_answered_with_what_is_left(rig: Rig) -> None:
    rollout, session = await rig.open(budget=SessionBudget(max_turns=20, max_context=10**6))
    words = 20
    while True:  # find the longest prompt that is not refused
        status, answer = await post(rig, session, body("z" * words, False, max_tokens=1))
        if status != 200:
            break
        used = len(rig.proxy.requests[-1]["input_ids"])
        words += max(1, (2040 - used) // 2)
    assert status == 400 and "maximum context length is 2042 tokens" in answer, (
        "never the rollout server's refusal"
    )
    assert used > 2030
    await rig.seal(rollout)


async def test_a_server_with_less_room_than_the_model_sets_the_limit_and_nothing_fails_for_it(
    database_url: str, nats_server: EmbeddedNats, policies: Policies, tmp_path: Path
) -> None:
    with running_server(policies.model, "--max-total-tokens", "600") as server:
        async with open_rig(database_url, nats_server.url, server.url, policies, tmp_path) as rig:
            await rig.publish(0)
            await eventually(lambda: rig.gateway.pool.servers[0].ready)
            rollout, session = await rig.open(budget=SessionBudget(max_turns=20, max_context=10**6))
            status, answer = await post(rig, session, body("x" * 2_000, False))
            assert status == 400 and "maximum context length is 594 tokens" in answer
            assert not rig.proxy.requests, "never the rollout server's refusal"
            assert (await post(rig, session, body("oak", False, max_tokens=4)))[0] == 200
            assert (await rig.seal(rollout)).failing is None
