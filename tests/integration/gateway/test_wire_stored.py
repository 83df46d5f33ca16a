"""Clients that refer to earlier answers (Responses): resolved from the session, after a restart of the gateway too; and wires as a whole."""

from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
import anyio
import openai
import pytest

from orchestrator.gateway.sessions.registry import SessionRegistry
from orchestrator.gateway.sessions.session import WAIT_TURN, Session
from orchestrator.gateway_client import OpenSession
from tests.integration.gateway.rig import Rig, until_row
from tests.integration.gateway.wires_rig import ask, gpt, message_of, user
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

TOOL: Any = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
SCRIPT = [
    {"content": "I look.", "tool_calls": [{"name": "look", "arguments": {}}]},
    {"content": "two oaks"},
    {"content": "and one elm"},
    {"content": "no more"},
]


async def stored(rig: Rig, rollout: int, count: int) -> list[tuple[str, int | None]]:
    rig.start_ingest()
    return [(str(step.kind), step.parent) for step in await rig.stored(rollout, count)]


async def served(session: OpenSession) -> tuple[Any, Any]:
    async with gpt(session) as client:
        first = await client.responses.create(
            model="m", input="how many?", instructions="Count.", tools=[TOOL]
        )
        call = first.output[-1]
        assert call.type == "function_call"
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "oak oak"}
        second = await client.responses.create(
            model="m", previous_response_id=first.id, input=[output], instructions="Count.", tools=[TOOL]
        )
        return first, second


async def test_a_response_goes_on_with_the_one_before_it_as_if_the_whole_conversation_were_sent(
    rig: Rig,
) -> None:
    rollout, session = await rig.open(scripted=SCRIPT)
    first, second = await served(session)
    assert second.output_text == "two oaks" and second.previous_response_id == first.id
    async with gpt(session) as client:
        third = await client.responses.create(
            model="m", previous_response_id=second.id, input="elms?", instructions="Count.", tools=[TOOL]
        )
        assert third.output_text == "and one elm"
        kept = await client.responses.retrieve(first.id)
        assert [item.type for item in kept.output] == [
            item.type for item in first.output
        ] and kept.id == first.id
        listed = await client.responses.input_items.list(third.id, order="asc")
        assert [item.type for item in listed.data] == [
            "message",
            "message",
            "function_call",
            "function_call_output",
            "message",
            "message",
        ]
        newest = await client.responses.input_items.list(third.id, limit=1)
        assert newest.has_more and newest.data[0].type == "message"
    assert await stored(rig, rollout, 3) == [("root", None), ("continues", 0), ("continues", 1)]


async def test_odd_bytes_and_numbers_are_refused_and_are_not_errors_of_the_gateway(rig: Rig) -> None:
    _, session = await rig.open(scripted=SCRIPT)
    first, _ = await served(session)
    base = session.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as http:
        for limit in ("0001" + "9" * 5000, "0100999", "-1", "0", "\u0661", ""):
            url = f"{base}/v1/responses/{first.id}/input_items"
            async with http.get(url, params={"limit": limit}) as answer:
                assert answer.status == 400 and "limit must be" in await answer.text()
    odd = urlsplit(base)
    for path, headers, status in (
        (b"/v1/models", b"Authorization: Bearer \xff\xfe\r\n", 401),
        (b"/v1/models", b"x-api-key: \xed\xa0\x80\r\n", 401),
        (b"/s/%ff%fe/v1/models", b"", 401),
        (odd.path.encode() + b"/v1/models/%ff", b"", 200),
    ):
        raw = b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n" % (path, headers)
        assert (await raw_answer(odd, raw)).startswith(b"HTTP/1.1 %d " % status)


async def raw_answer(url: SplitResult, raw: bytes) -> bytes:
    """A gateway's answer to `raw`."""
    async with await anyio.connect_tcp(str(url.hostname), url.port or 80) as stream:
        await stream.send(raw)
        return await stream.receive()


async def test_items_that_were_served_may_stand_as_references(rig: Rig) -> None:
    rollout, session = await rig.open(scripted=SCRIPT)
    async with gpt(session) as client:
        first = await client.responses.create(model="m", input=[user("how many?")], tools=[TOOL])
        call = first.output[-1]
        assert call.type == "function_call"
        bare: Any = [{"id": first.output[0].id}, {"id": call.id, "type": None}]
        refer: Any = [{"type": "item_reference", "id": item.id} for item in first.output]
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "oak oak"}
        second = await client.responses.create(
            model="m", input=[user("how many?"), *bare, output], tools=[TOOL]
        )
        assert second.output_text == "two oaks"
        last: Any = {"id": second.output[0].id}
        third = await client.responses.create(
            model="m", input=[user("how many?"), *refer, output, last, user("elms?")], tools=[TOOL]
        )
        assert third.output_text == "and one elm"
    assert await stored(rig, rollout, 3) == [("root", None), ("continues", 0), ("continues", 1)]


async def test_items_of_the_input_may_stand_as_references_after_a_restart_too(rig: Rig) -> None:
    rollout, session = await rig.open(scripted=SCRIPT)
    shown: list[Any] = [
        user("how many?"),
        {"type": "function_call", "call_id": "x", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "x", "output": "oak"},
        user("again?"),
    ]
    async with gpt(session) as client:
        first = await client.responses.create(model="m", input=shown, tools=[TOOL])
        call = first.output[-1]
        assert call.type == "function_call"
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "oak oak"}
        elm: Any = {**output, "output": "elm"}
        second = await client.responses.create(
            model="m", previous_response_id=first.id, input=[output], tools=[TOOL]
        )
        other = await client.responses.create(
            model="m", previous_response_id=first.id, input=[elm], tools=[TOOL]
        )
        listed = await client.responses.input_items.list(second.id, order="asc")
        of_other = await client.responses.input_items.list(other.id, order="asc")
    ids = [str(item.id) for item in listed.data]
    assert ids[:-1] == [str(item.id) for item in of_other.data[:-1]]
    assert ids[-1] != of_other.data[-1].id, "an id has one meaning in a session"
    await rig.stop_gateway()
    async with rig.another_gateway(), gpt(session) as client:
        references: Any = [{"type": "item_reference", "id": item} for item in (*ids, second.output[0].id)]
        last = await client.responses.create(model="m", input=[*references, user("elms?")], tools=[TOOL])
        assert last.output_text == "no more"
    assert (await stored(rig, rollout, 4))[-1] == ("continues", 1)


async def test_responses_served_before_a_restart_of_the_gateway_can_be_referred_to_after_it(rig: Rig) -> None:
    rollout, session = await rig.open(scripted=SCRIPT)
    _, second = await served(session)
    await rig.stop_gateway()
    async with rig.another_gateway(), gpt(session) as client:
        third = await client.responses.create(
            model="m", previous_response_id=second.id, input="elms?", instructions="Count.", tools=[TOOL]
        )
        assert third.output_text == "and one elm"
        reference: Any = {"type": "item_reference", "id": second.output[0].id}
        with pytest.raises(openai.BadRequestError, match="last message of input is the assistant's"):
            await client.responses.create(model="m", input=[user("?"), reference])
    assert (await stored(rig, rollout, 3))[-1] == ("continues", 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("aborted", [False, True])
async def test_the_id_of_a_retry_names_its_own_answer_after_a_restart_however_the_call_that_it_repeats_ends(
    rig: Rig, aborted: bool, stream: bool
) -> None:
    proxy, (rollout, session) = rig.proxy, await rig.open()
    released, retried, ids = anyio.Event(), anyio.Event(), list[str]()
    await eventually(lambda: rig.gateway.pool.servers[0].ready)  # else its canary is held
    if aborted:
        proxy.stops, proxy.held["/abort_request"] = [4], released
    else:
        proxy.swallowed.add("/abort_request")
        proxy.held["/generate"] = released

    async def create() -> None:
        async with gpt(session) as client:
            if not stream:
                ids.append((await client.responses.create(model="m", input="oak")).id)
                return
            async for event in await client.responses.create(model="m", input="oak", stream=True):
                if event.type == "response.created":
                    ids.append(event.response.id)

    async with anyio.create_task_group() as leaving:
        leaving.start_soon(create)
        await eventually(lambda: proxy.standing if aborted else "/generate" in proxy.seen)
        leaving.cancel_scope.cancel()
    await eventually(lambda: "/abort_request" in proxy.seen)
    proxy.held["/generate"] = retried
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        await eventually(lambda: proxy.seen.count("/generate") == 2)
        released.set()
        await until_row(rig, "SELECT 1 FROM sessions WHERE seal -> 'marks' -> '0' = '[\"undelivered\"]'")
        retried.set()
    await rig.stop_gateway()
    async with rig.another_gateway(), gpt(session) as client:
        await client.responses.create(model="m", previous_response_id=ids[-1], input="elms?")
    assert (await stored(rig, rollout, 3))[-1] == ("continues", 1)


async def test_instructions_count_for_one_response_and_a_deleted_one_is_gone(rig: Rig) -> None:
    rollout, session = await rig.open(scripted=SCRIPT)
    first, _ = await served(session)
    output: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "oak oak"}
    async with gpt(session) as client:
        other = await client.responses.create(
            model="m", previous_response_id=first.id, input=[output], tools=[TOOL]
        )
        assert other.output_text == "and one elm"
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match="no response"):
            await client.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id refers to"):
            await client.responses.create(model="m", previous_response_id=first.id, input="?")
    await rig.stop_gateway()
    async with rig.another_gateway(), gpt(session) as client:
        with pytest.raises(openai.NotFoundError, match="no response"):
            await client.responses.retrieve(first.id)
    kinds = [kind for kind, _ in await stored(rig, rollout, 3)]
    assert kinds[-1] != "continues", "without its instructions it is another conversation"


async def test_stored_objects_are_answered_in_the_turn_of_their_session(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, found = SessionRegistry.find, list[Session]()

    async def noted(registry: SessionRegistry, token: str) -> Session:
        found.append(await find(registry, token))
        return found[-1]

    monkeypatch.setattr(SessionRegistry, "find", noted)
    (_, session), (_, other) = await rig.open(scripted=SCRIPT), await rig.open(scripted=SCRIPT)
    (first, _), (_, others) = await served(session), await served(other)
    url = f"{session.path}/responses/{first.id}"
    questions = (("GET", url), ("GET", f"{url}/input_items"), ("DELETE", url))
    await ask(rig, url, b"", "GET")
    greedy, statuses = found[-1], list[int]()
    worked_s = greedy.worked_s
    await ask(rig, f"{url}/input_items", b"", "GET")
    assert greedy.worked_s > worked_s
    greedy.charge_time(1000.0)

    async def one(method: str, path: str) -> None:
        status, _, _ = await ask(rig, path, b"", method)
        statuses.append(status)

    async with anyio.create_task_group() as tasks:
        for number in range(WAIT_TURN + 3):
            tasks.start_soon(one, *questions[number % 3])
        await eventually(lambda: len(statuses) == 3)
        assert statuses == [503] * 3
        status, reply, _ = await ask(
            rig, f"{other.path}/responses/{others.id}/input_items?limit=1", b"", "GET"
        )
        assert status == 200 and len(reply["data"]) == 1
        tasks.cancel_scope.cancel()


async def test_another_spelling_of_an_id_names_no_response(rig: Rig) -> None:
    _, session = await rig.open(scripted=SCRIPT)
    first, _ = await served(session)
    stem, _, number = first.id.rpartition("_")
    for method in ("GET", "DELETE"):
        status, _, _ = await ask(rig, f"{session.path}/responses/{stem}_0{number}", b"", method)
        assert status == 404


async def test_what_a_query_wants_beyond_a_stored_response_is_refused_by_name(rig: Rig) -> None:
    _, session = await rig.open(scripted=SCRIPT)
    first, _ = await served(session)
    async with gpt(session) as client:
        for include, words in (
            (["message.output_text.logprobs"], "not served"),
            (["all"], "'all' is not known"),
        ):
            with pytest.raises(openai.BadRequestError, match=f"include: .*{words}"):
                await client.responses.retrieve(first.id, include=include)  # type: ignore[arg-type]
            with pytest.raises(openai.BadRequestError, match=f"include: .*{words}"):
                await client.responses.input_items.list(first.id, include=include)  # type: ignore[arg-type]
        assert await client.responses.retrieve(first.id, include=["reasoning.encrypted_content"])
    url = f"{session.path}/responses/{first.id}"
    for query, words in (
        ("starting_after=3", "ask without starting_after"),
        ("stream=true&starting_after=3", "ask without stream"),
        ("include=all", "include: 'all' is not known"),
    ):
        status, answer, _ = await ask(rig, f"{url}?{query}", b"", "GET")
        assert status == 400 and words in message_of("/responses", answer), answer


async def test_a_response_that_this_session_never_served_is_refused_by_name(rig: Rig) -> None:
    _, session = await rig.open(scripted=SCRIPT)
    _, other = await rig.open(scripted=SCRIPT)
    first, _ = await served(other)
    url = session.path + "/responses"
    for body, words in (
        ({"previous_response_id": first.id, "input": "?"}, f"previous_response_id refers to '{first.id}'"),
        ({"previous_response_id": "resp_1", "input": "?"}, "previous_response_id refers to 'resp_1'"),
        ({"previous_response_id": 3, "input": "?"}, "previous_response_id must be"),
        ({"input": [user("?"), {"type": "item_reference", "id": "msg_s7"}]}, "input[1] refers to 'msg_s7'"),
        ({"input": [user("?"), {"type": "item_reference", "id": "msg_123"}]}, "input[1] refers to 'msg_123'"),
        ({"input": [user("?"), {"id": "msg_123"}]}, "input[1] refers to 'msg_123'"),
        ({"input": [user("?"), {"id": "msg_h0_7"}]}, "input[1] refers to 'msg_h0_7'"),
        ({"input": [user("?"), {"type": "item_reference"}]}, "without an id"),
    ):
        status, answer, _ = await ask(rig, url, body)
        assert status == 400 and words in message_of("/responses", answer), answer
    for method, path in (
        ("GET", "/resp_1"),
        ("GET", f"/{first.id}"),
        ("DELETE", "/resp_1"),
        ("GET", "/resp_1/input_items"),
    ):
        status, answer, _ = await ask(rig, url + path, b"", method)
        assert status == 404 and "no response" in message_of("/responses", answer)
    status, answer, _ = await ask(rig, "/s/unknown/v1/responses/resp_1", b"", "GET")
    assert status == 401


async def test_a_reference_to_an_object_of_the_other_kind_is_refused(rig: Rig) -> None:
    _, session = await rig.open(scripted=SCRIPT)
    first, _ = await served(session)
    for body, words in (
        ({"input": [user("?"), {"id": first.id}]}, "input[1] refers to a response"),
        ({"input": "?", "previous_response_id": first.output[0].id}, "previous_response_id refers to"),
    ):
        status, answer, _ = await ask(rig, session.path + "/responses", body)
        assert status == 400 and words in message_of("/responses", answer), answer


async def test_a_model_is_found_by_any_name_with_slashes_as_they_are_or_encoded(rig: Rig) -> None:
    from urllib.parse import quote

    _, session = await rig.open()
    for name in ("policy", "org/model", "hf.co/org/model:q4", "org/model@main", "a b"):
        for spelled in {quote(name, safe=""), quote(name)}:
            status, answer, _ = await ask(rig, f"{session.path}/models/{spelled}", b"", "GET")
            assert status == 200 and answer["id"] == name, (spelled, answer)
