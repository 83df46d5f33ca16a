"""The refusals of the wires: every error in the caller's dialect, one sentence, and the session lives on; and the answers to probes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway_client import SessionBudget
from tests.integration.gateway.rig import Policies, Rig, open_rig
from tests.integration.gateway.wires_rig import PATHS, ask, bodies, claude, gpt, message_of, user
from tests.unit.gateway.dialect_rig import decoded

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    small = {"gateway": {"body_limit_mb": 1}}
    async with open_rig(database_url, nats_server.url, server_url, policies, tmp_path, sections=small) as rig:
        await rig.publish(0)
        yield rig


@pytest.mark.parametrize("path", PATHS)
async def test_every_refusal_is_in_dialect_and_the_session_lives_on(rig: Rig, path: str) -> None:
    _, session = await rig.open()
    url, good = session.path + path, bodies("oak")[path]
    image = {"/chat/completions": "image_url", "/responses": "input_image", "/messages": "image"}[path]
    key = "input" if path == "/responses" else "messages"
    seen = {**good, key: [user([{"type": image}])]}
    nested = b'{"a": ' * 900 + b"1" + b"}" * 900
    call = {
        "/chat/completions": b'{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": %b}}]}',
        "/responses": b'{"type": "function_call", "call_id": "x", "name": "f", "arguments": %b}',
        "/messages": b'{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": %b}]}',
    }[path]
    deep = b'{"%b": [%b]}' % (key.encode(), call % nested)
    levels = b'{"a": ' * 10_000 + b"1" + b"}" * 10_000
    plain = json.dumps(good).encode()
    force: Any = {"type": "any"} if path == "/messages" else "required"
    for status, words, target, body, method, headers in (
        (401, "unknown session token", f"/s/unknown/v1{path}", good, "POST", {}),
        (401, "unknown session token", f"/v1{path}", good, "POST", {}),
        (401, "name different sessions", url, good, "POST", {"x-api-key": "other"}),
        (401, "name different sessions", url, good, "POST", {"Authorization": "Bearer other"}),
        (400, "not JSON", url, b'{"messages": [', "POST", {}),
        (400, "not JSON", url, b"\xff\xfe", "POST", {}),
        (400, "not JSON", url, b'{"a": "\\u0041", "b": NaN}', "POST", {}),
        (400, "nested too deeply", url, b"[" * 100_000, "POST", {}),
        (400, "nested too deeply", url, deep, "POST", {}),
        (400, "nested too deeply", url, plain[:-1] + b', "metadata": %b}' % levels, "POST", {}),
        (400, "not JSON", url, plain + plain, "POST", {}),
        (400, "not JSON", url, plain[:-1] + b', "temperature": %b}' % (b"9" * 5000), "POST", {}),
        (400, "not JSON", url, plain.replace(b"oak", b"\0"), "POST", {}),
        (400, "not JSON", url, b"\xef\xbb\xbf" + plain, "POST", {}),
        (400, "is of the type", url, plain[:-1] + b', "tools": [{"type": "\\ud800\\n", "name": "x"}]}', "POST", {}),
        (400, "tool_choice wants a call", url, {**good, "tool_choice": force}, "POST", {}),
        (400, "is not supported", url, {**good, "input" if key == "messages" else "messages": [user("x")]}, "POST", {}),
        (400, "cannot be read as zstd", url, plain, "POST", {"Content-Encoding": "zstd"}),
        (415, "'br' is not read", url, plain, "POST", {"Content-Encoding": "br"}),
        (400, "must be a JSON object", url, [], "POST", {}),
        (400, "an image", url, seen, "POST", {}),
        (400, "must be a list", url, {**good, "tools": 3}, "POST", {}),
        (413, "larger than 1,048,576 bytes", url, b" " * (2**20 + 1), "POST", {}),
        (404, "no such route", url + "/no/where", good, "POST", {}),
        (405, "use HEAD, POST", url, good, "GET", {}),
    ):  # fmt: skip
        got, answer, _ = await ask(rig, target, body, method, **headers)
        assert got == status, (words, answer)
        assert words in message_of(path, answer)
    status, answer, _ = await ask(rig, url, {**good, "frobnicate": {"deep": [1]}})
    assert status == 200, answer
    odd = (
        plain.replace(b"oak", b"\\ud800\\u0000")[:-1]
        + b', "\\ud800": {"\\u0000": "\\ud800"}, "model": "a", "model": "\\u0000"}'
    )
    status, answer, _ = await ask(rig, url, odd, **{"Content-Type": "multipart/form-data"})
    assert status == 200, answer
    assert rig.gateway.pool.servers[0].ready and len(rig.proxy.sent) == 2


@pytest.mark.parametrize("path", PATHS)
async def test_a_full_context_and_a_sealed_session_are_refused_in_dialect(rig: Rig, path: str) -> None:
    rollout, session = await rig.open(budget=SessionBudget(max_turns=9, max_context=500))
    status, answer, _ = await ask(rig, session.path + path, bodies("oak " * 500)[path])
    assert status == 400
    words = message_of(path, answer)
    assert words.startswith("prompt is too long") and "maximum context length is 500 tokens" in words
    status, answer, _ = await ask(rig, session.path + path, bodies("oak")[path])
    assert status == 200, "a shorter history is answered"
    await rig.seal(rollout)
    for body in (bodies("oak")[path], bodies("oak", stream=True)[path]):
        status, answer, headers = await ask(rig, session.path + path, body)
        assert status == 409 and "session is over" in message_of(path, answer)
        assert headers["x-should-retry"] == "false", "the official clients would try a 409 again"


async def test_a_streamed_response_is_refused_for_a_full_context_inside_its_stream(rig: Rig) -> None:
    _, session = await rig.open(budget=SessionBudget(max_turns=9, max_context=500))
    full = bodies("oak " * 500, stream=True)["/responses"]
    async with (
        aiohttp.ClientSession() as http,
        http.post(rig.gateway.url + session.path + "/responses", json=full) as answer,
    ):
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        events = decoded([await answer.read()])
    kinds = ["response.created", "response.in_progress", "error", "response.failed"]
    assert [kind for kind, _ in events] == kinds
    assert events[-1][1]["response"]["error"]["code"] == "context_length_exceeded"
    async with gpt(session) as client:
        stream = await client.responses.create(model="m", input="oak " * 500, stream=True)
        with pytest.raises(openai.APIError, match="maximum context length is 500 tokens"):
            _ = [event async for event in stream]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input="oak " * 500)
        assert refused.value.code == "context_length_exceeded"
    for path in ("/chat/completions", "/messages"):
        status, answer, _ = await ask(rig, session.path + path, bodies("oak " * 500, stream=True)[path])
        assert status == 400 and message_of(path, answer).startswith("prompt is too long")


async def test_the_official_packages_raise_their_own_errors(rig: Rig) -> None:
    rollout, session = await rig.open()
    large = "x" * 2**20
    async with claude(session) as one, gpt(session) as two:
        with pytest.raises(anthropic.RequestTooLargeError):
            await one.messages.create(model="m", max_tokens=9, messages=[user(large)])
        with pytest.raises(openai.APIStatusError) as status:
            await two.responses.create(model="m", input=large)
        assert status.value.status_code == 413
        with pytest.raises(anthropic.NotFoundError):
            await one.messages.batches.list()
        with pytest.raises(openai.NotFoundError):
            await two.embeddings.create(model="m", input="x")
        await rig.seal(rollout)
        with pytest.raises(anthropic.ConflictError):
            await one.messages.create(model="m", max_tokens=9, messages=[user("oak")])
        with pytest.raises(openai.ConflictError):
            await two.responses.create(model="m", input="oak")
    async with claude(session, default_headers={"Authorization": "Bearer another"}) as one:
        with pytest.raises(anthropic.AuthenticationError):
            await one.messages.create(model="m", max_tokens=9, messages=[user("oak")])


async def test_probes_and_models_are_answered_with_and_without_a_token_in_the_path(rig: Rig) -> None:
    _, session = await rig.open()
    below = session.path.removesuffix("/v1")
    for method in ("HEAD", "GET"):
        for path in ("/", "/v1", "/health", below, f"{below}/", f"{below}/v1", f"{below}/health"):
            assert (await ask(rig, path, b"", method))[0] == 200, (method, path)
        assert (await ask(rig, "/s/unknown/", b"", method))[0] == 401
    for path in ("/chat/completions", "/responses", "/messages", "/messages/count_tokens"):
        assert (await ask(rig, session.path + path, b"", "HEAD"))[0] == 200
    async with claude(session) as one, gpt(session) as two:
        assert [model.id async for model in one.models.list()] == [rig.run]
        assert [model.id async for model in two.models.list()] == [rig.run]
        assert (await one.models.retrieve("claude-x")).display_name == "claude-x"
        assert (await two.models.retrieve("gpt-x")).owned_by == "penstock"
