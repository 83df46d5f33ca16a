"""A command in a sandbox finds a program's token: its calls of the gateway are marked, counted and bounded."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import aiohttp
import anyio
import pytest

from orchestrator.gateway.sessions.session import Session
from orchestrator.gateway_client import SessionBudget
from tests.integration.gateway.rig import Rig
from tests.integration.gateway.wires_rig import ask, user
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

SYSTEM = {"role": "system", "content": "you fix things"}
TASK = user("count the oaks")


async def test_a_conversation_that_begins_otherwise_is_marked_and_takes_turns(rig: Rig) -> None:
    rollout, session = await rig.open(
        budget=SessionBudget(max_turns=5, max_context=2048), conversations="one", auxiliary=["*-small"]
    )
    url = session.path + "/chat/completions"

    async def say(*messages: Any, model: str = "policy") -> tuple[int, Any]:
        status, reply, _ = await ask(rig, url, {"model": model, "messages": messages, "max_tokens": 6})
        return status, reply

    _, title = await say(user("a title?"), model="policy-small")
    assert title
    _, first = await say(SYSTEM, TASK)
    answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    await say(SYSTEM, TASK, answer, user("go on"))  # the conversation
    await say(user("think for me"))  # a command's own
    await say(SYSTEM, user("think for me"))  # under the program's own system prompt
    await say(SYSTEM, TASK, user("a summary stands here"))  # shortened, as programs do
    status, reply = await say(SYSTEM, TASK, answer, user("and on"))
    assert status == 400 and "budget of 5 (turns)" in reply["error"]["message"], "they took turns"
    seal = await rig.seal(rollout)
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [
        (0, "auxiliary"),
        (3, "side_conversation"),
        (4, "side_conversation"),
    ]
    assert rig.gateway.metrics.registry.get_sample_value("penstock_gateway_side_steps_total") == 2


async def test_every_conversation_of_a_program_outside_trains(rig: Rig) -> None:
    rollout, session = await rig.open(conversations="many")
    for messages in ([SYSTEM, TASK], [user("a sub-agent's task")]):
        status, answer, _ = await ask(rig, session.path + "/chat/completions", {"messages": messages})
        assert status == 200, answer
    assert not (await rig.seal(rollout)).marks


PROMPT = "list the imports of every file below src"
BODY: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "task", "parameters": {"type": "object"}}}]
}
SCRIPT: list[dict[str, Any]] = [
    {
        "content": "",
        "tool_calls": [{"name": "task", "arguments": {"description": "imports", "prompt": PROMPT}}],
    },
    *({"content": f"all that was done so far, {n}"} for n in range(5)),
]


async def test_with_sub_agents_only_what_a_step_handed_over_begins_a_conversation_that_trains(
    rig: Rig,
) -> None:
    rollout, session = await rig.open(conversations="many", sub_agents=["task"], scripted=SCRIPT)
    url = session.path + "/chat/completions"
    for messages in (
        [SYSTEM, TASK],
        [user("think for me")],  # a command's own
        [{"role": "system", "content": "you are a sub-agent"}, user(PROMPT)],
        [user(f"{PROMPT}, and think")],  # a command's own: the call has its conversation
        [SYSTEM, user(f"It goes on. Before: {SCRIPT[2]['content']}")],
    ):
        status, answer, _ = await ask(rig, url, {**BODY, "messages": messages})
        assert status == 200, answer
    marks = [(mark.idx, mark.reason) for mark in (await rig.seal(rollout)).marks]
    assert marks == [(1, "side_conversation"), (3, "side_conversation")]
    assert rig.gateway.metrics.registry.get_sample_value("penstock_gateway_side_steps_total") == 2


async def test_a_gateway_that_starts_again_knows_which_conversations_are_the_scaffolds(rig: Rig) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(conversations="many", sub_agents=["task"], scripted=SCRIPT)
    for messages in ([SYSTEM, TASK], [user("think for me")], [user(PROMPT)]):
        await ask(rig, session.path + "/chat/completions", {**BODY, "messages": messages})
    await rig.stop_gateway()
    async with rig.another_gateway() as (gateway, admin):
        for messages in (
            [user(f"{PROMPT}, and think")],
            [SYSTEM, TASK, user("go on")],
            [user("think for me"), user("on")],
        ):
            async with aiohttp.ClientSession() as http:
                url = gateway.url + session.path + "/chat/completions"
                async with http.post(url, json={**BODY, "messages": messages}) as answer:
                    assert answer.status == 200, await answer.text()
        seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert [mark.idx for mark in seal.marks if mark.reason == "side_conversation"] == [1, 3, 5]


@pytest.mark.parametrize("kind", ["one", "many"])
async def test_of_two_first_requests_at_once_both_train_whichever_ends_first(rig: Rig, kind: str) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(conversations=kind, sub_agents=["task"])
    main: list[Any] = [SYSTEM, TASK]
    reply: dict[str, Any] = {}

    async def say(*messages: Any, url: str = rig.gateway.url) -> Any:
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                url + session.path + "/chat/completions", json={"messages": messages, "max_tokens": 6}
            ) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return (await answer.json())["choices"][0]["message"]

    async def say_main() -> None:
        reply.update(await say(*main))

    rig.proxy.stops = [3]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(say_main)
        await eventually(lambda: rig.proxy.standing == 1)
        await say({"role": "system", "content": "you write titles"}, user("count the oaks: a title?"))
        rig.proxy.go_on()
    await say(user("think for me"))  # a command's own
    main += [{"role": "assistant", "content": reply["content"]}, user("go on")]
    await say(*main)
    await rig.stored(rollout, 4)
    await rig.stop_gateway()
    async with rig.another_gateway() as (gateway, admin):
        await say(SYSTEM, TASK, user("a summary stands here"), url=gateway.url)
        await say(user("think for me"), user("on"), url=gateway.url)
        seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [
        (2, "side_conversation"),
        (5, "side_conversation"),
    ]


async def test_a_first_request_that_is_still_being_received_when_another_ends_trains(rig: Rig) -> None:
    rollout, session = await rig.open(conversations="one")
    url = session.path + "/chat/completions"
    go_on = anyio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        body = json.dumps({"messages": [SYSTEM, TASK], "max_tokens": 6}).encode()
        yield body[:5]
        await go_on.wait()
        yield body[5:]

    async def say_main() -> None:
        async with aiohttp.ClientSession() as http, http.post(rig.gateway.url + url, data=slowly()) as answer:
            assert answer.status == 200, await answer.text()

    found: list[Session] = []
    receiving = Session.receiving

    def seen(of: Session) -> AbstractContextManager[None]:
        found.append(of)
        return receiving(of)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "receiving", seen)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say_main)
            await eventually(lambda: len(found) == 1)
            status, answer, _ = await ask(rig, url, {"messages": [user("a title?")], "max_tokens": 6})
            assert status == 200, answer
            go_on.set()
    assert (await rig.seal(rollout)).marks == ()


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (
            SessionBudget(max_turns=9, max_context=2048, max_auxiliary_calls=2),
            "budget of 2 (auxiliary calls)",
        ),
        (
            SessionBudget(max_turns=9, max_context=2048, max_auxiliary_tokens=12),
            "budget of 12 (auxiliary tokens)",
        ),
    ],
)
async def test_auxiliary_calls_have_a_budget_of_their_own(
    rig: Rig, budget: SessionBudget, words: str
) -> None:
    rollout, session = await rig.open(budget=budget, auxiliary=["*-small"])
    url = session.path + "/messages"
    status = 200
    answer: Any = None
    for n in range(14):
        request = {"model": "policy-small", "messages": [user(f"think {n}")], "max_tokens": 9}
        status, answer, _ = await ask(rig, url, request)
        if status != 200:
            break
    assert status == 400 and answer["type"] == "error" and words in answer["error"]["message"], answer
    status, answer, _ = await ask(rig, url, {"model": "policy", "messages": [user("oak")], "max_tokens": 9})
    assert status == 200, "the conversation goes on"
    seal = await rig.seal(rollout)
    assert seal.exhausted is None
    if budget.max_auxiliary_tokens is not None:
        stepped = sum(len(output) for _, output in rig.proxy.sent[:-1])
        assert stepped <= budget.max_auxiliary_tokens
