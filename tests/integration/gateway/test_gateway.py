"""The gateway on real Postgres and NATS before a real rollout server: the served tokens, the recorded tokens and the sent tokens are equal."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import aiohttp
import anyio
import openai
import pytest
from scaffolds.base import AgentLimits
from sqlalchemy import text

from orchestrator.deploy.embedded.ports import free_port
from orchestrator.gateway.sessions.session import Session
from orchestrator.gateway.sessions.store import SessionStore
from orchestrator.gateway_client import (
    BudgetExhausted,
    NativeLlm,
    RecordedCompletion,
    SessionBudget,
    SessionOver,
)
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.llm import Recorder
from tests.integration.gateway.rig import OpenRig, Rig, held_generation, until_row, watched_calls
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
POLICY_VERSIONS = 3

BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_stored_steps_fold_to_the_requests_that_the_rollout_server_received(rig: Rig) -> None:
    rig.start_ingest()
    rollout, session = await rig.open()
    history = [user("count the lines of oak.txt")]
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        for turn in range(4):
            reply = await llm.complete(history, [BASH])
            assert reply.step == turn
            history += [reply.message(), user(f"go on {turn}")]
        history = [user("something else, oak"), *history[1:]]  # a rewritten history
        await llm.complete(history, [BASH])
        await llm.complete([user("a side question")], [BASH], agent="helper")
    seal = await rig.seal(rollout)
    steps = await rig.stored(rollout, seal.steps)
    assert [(state, out) for state, out in rig.proxy.sent] == [
        (step.full[: step.state_len].tolist(), step.action.tolist()) for step in steps
    ]
    assert [step.kind.value for step in steps] == ["root", *["continues"] * 3, "root", "root"]
    assert all(len(step.logprobs) == len(step.action) for step in steps)
    assert seal.marks == () and seal.versions == (0,) and seal.exhausted is None
    (row,) = await rig.rows("SELECT * FROM sessions")
    assert row.state == "sealed" and row.seal["digest"] == seal.digest


def client(rig: Rig, base_url: str, token: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key=token, max_retries=0, **options)


def call(command: str) -> dict[str, Any]:
    return {"name": "bash", "arguments": {"command": command}}


DEMONSTRATION: list[dict[str, Any]] = [
    {
        "reasoning": "look at both",
        "content": "so:",
        "tool_calls": [call("wc -l oak.txt"), call('echo "a\nb"')],
    },
    {"reasoning": "I know it", "content": None, "copy_observation": True},
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_official_client_reads_parallel_tool_calls_reasoning_and_usage(
    rig: Rig, stream: bool
) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(scripted=DEMONSTRATION)
    history: list[Any] = [user("how many lines has oak.txt?")]
    async with client(rig, session.base_url, session.token) as chat:
        request: dict[str, Any] = {"model": "policy", "messages": history, "tools": [BASH]}
        message: dict[str, Any]
        if stream:
            texts: dict[str, str] = {"content": "", "reasoning_content": ""}
            calls: dict[int, dict[str, Any]] = {}
            finish, usage = None, None
            options: Any = {"include_usage": True}
            async for chunk in await chat.chat.completions.create(
                **request, stream=True, stream_options=options
            ):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    finish = choice.finish_reason or finish
                    for key in texts:
                        texts[key] += getattr(choice.delta, key, None) or ""
                    for delta in choice.delta.tool_calls or []:
                        assert delta.index not in calls, "one delta per call"
                        calls[delta.index] = delta.model_dump(exclude={"index"})
            message = {"role": "assistant", "content": texts["content"], "tool_calls": [calls[0], calls[1]]}
            reasoning = texts["reasoning_content"]
        else:
            reply = await chat.chat.completions.create(**request)
            message = reply.choices[0].message.model_dump(exclude_none=True)
            finish, usage, reasoning = (
                reply.choices[0].finish_reason,
                reply.usage,
                message["reasoning_content"],
            )
        assert (message["content"], reasoning, finish) == ("so:", "look at both", "tool_calls")
        assert [each["function"]["arguments"] for each in message["tool_calls"]] == [
            '{"command":"wc -l oak.txt"}',
            '{"command":"echo \\"a\\nb\\""}',
        ]
        assert usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        history.append(message)
        for each, output in zip(message["tool_calls"], ("7 oak.txt", "a\nb"), strict=True):
            history.append(
                {"role": "tool", "tool_call_id": each["id"], "content": [{"type": "text", "text": output}]}
            )
        final = await chat.chat.completions.create(**request)
        assert final.choices[0].message.content == "a\nb"
        more: list[Any] = [*history, user("more")]
        with pytest.raises(openai.BadRequestError) as refused:
            await chat.chat.completions.create(model="policy", messages=more)
        assert refused.value.code == "budget_exhausted"
    seal = await rig.seal(rollout)
    assert (seal.steps, seal.exhausted, seal.marks) == (2, "turns", ())
    first, second = await rig.stored(rollout, 2)
    assert second.kind.value == "continues" and second.keep_len == len(first.full)
    assert tuple(map(tuple, first.spans)) == ((0, 0, len(first.action)),) and not first.logprobs.any()
    (row,) = await rig.rows("SELECT params FROM sampling")
    assert row.params == {"scripted": True}
    assert rig.proxy.sent == []


async def test_a_scripted_reply_that_is_to_be_generated_takes_a_rollout_server_as_long_and_says_the_script(
    rig: Rig,
) -> None:
    rig.start_ingest()
    script = [{"content": "seven lines, and not one more", "generate": True}, {"content": "bye"}]
    rollout, session = await rig.open(scripted=script)
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        reply = await llm.complete([user("how many lines has oak.txt?")])
        last = await llm.complete([user("how many lines has oak.txt?"), reply.message(), user("well?")])
    assert (reply.content, last.content) == ("seven lines, and not one more", "bye")
    [sent] = rig.proxy.bodies
    first, _ = await rig.stored(rollout, 2)
    assert sent["sampling_params"]["max_new_tokens"] == len(first.action)
    assert sent["sampling_params"]["ignore_eos"] is True
    assert reply.timings.generation > 0 and last.timings.generation == 0
    generating = [round(begin - end, 6) for begin, end in reply.generating or ()]
    assert sum(generating) == pytest.approx(reply.timings.generation, abs=1e-4) and not last.generating
    assert not first.logprobs.any()


async def test_the_own_time_of_a_white_box_that_replays_a_rollout_holds_the_generation_of_its_replies(
    rig: Rig,
) -> None:
    """From such replays the noise of log T is measured."""
    rig.start_ingest()
    _, session = await rig.open(scripted=[{"content": "seven lines, and not one more", "generate": True}])
    clocks = Clocks(timeout_s=60.0, stall_s=60.0, completion_s=60.0)
    limits = AgentLimits(turns=100, context=2048, tool_timeout_s=10.0, timeout_s=60.0)
    async with NativeLlm(rig.gateway.url, session.token) as native:
        agent = Recorder(native=native, clocks=clocks, limits=limits).agent("main")
        reply = await clocks.run(partial(agent.llm.complete, [user("how many lines has oak.txt?")]))
    assert isinstance(reply, RecordedCompletion)
    assert clocks.own_s >= reply.timings.generation > 0
    assert clocks.generation_s == pytest.approx(reply.timings.generation, abs=1e-3)


async def test_a_step_that_no_message_of_the_bus_holds_is_refused_and_the_next_one_is_recorded(
    open_here: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.gateway.server.longest_body", lambda _: 3000)
    async with open_here() as rig:
        await rig.publish(0)
        rig.start_ingest()
        rollout, session = await rig.open()
        long: Any = [user("oak " * 300)]
        short: Any = [user("oak")]
        async with client(rig, session.base_url, session.token) as chat:
            with pytest.raises(
                openai.BadRequestError, match=r"at most 3,000 \(max_payload\): send a shorter"
            ):
                await chat.chat.completions.create(model="policy", messages=long)
            await chat.chat.completions.create(model="policy", messages=short)
        assert (await rig.seal(rollout)).steps == 1
        await rig.stored(rollout, 1)


async def test_a_wrong_or_missing_token_gets_401_and_a_sealed_session_409(rig: Rig) -> None:
    rollout, session = await rig.open()
    body: dict[str, Any] = {"model": "policy", "messages": [user("oak")]}
    async with client(rig, session.base_url, "another") as chat:  # path and API key disagree
        with pytest.raises(openai.AuthenticationError):
            await chat.chat.completions.create(**body)
    async with client(rig, f"{rig.gateway.url}/v1", "unknown") as chat:
        with pytest.raises(openai.AuthenticationError):
            await chat.chat.completions.create(**body)
    async with client(rig, f"{rig.gateway.url}/v1", session.token) as chat:  # the API key alone is enough
        await chat.chat.completions.create(**body)
        assert [model.id async for model in chat.models.list()] == [rig.run]
        await rig.seal(rollout)
        with pytest.raises(openai.ConflictError):
            await chat.chat.completions.create(**body)
    (row,) = await rig.rows("SELECT token_hash FROM sessions")
    assert session.token.encode() not in row.token_hash and len(row.token_hash) == 32


async def test_the_socket_takes_calls_from_anybody_and_has_no_admin_routes(rig: Rig) -> None:
    _, session = await rig.open()
    path = rig.gateway.socket_path
    assert path.stat().st_mode & 0o777 == 0o666 and [entry.name for entry in path.parent.iterdir()] == [
        path.name
    ]
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
        async with http.post(
            f"http://gateway{session.path}/chat/completions", json={"messages": [user("oak")]}
        ) as answer:
            assert answer.status == 200
        secret = {"Authorization": f"Bearer {rig.gateway.admin_secret}"}
        for route in ("/admin/sessions", "/admin/sessions/seal", "/metrics"):
            async with http.post(f"http://gateway{route}", json={}, headers=secret) as answer:
                assert answer.status == 404


async def test_the_port_for_sandboxes_of_other_hosts_takes_calls_and_has_no_admin_routes(
    open_here: OpenRig,
) -> None:
    port = free_port()
    sections = {"gateway": {"sandbox_port": port}}
    async with open_here(sections=sections) as rig:
        seen = await rig.admin.activity(rollout=0, attempt=0, epoch=0)
        assert seen.sandbox_port == port
        secret = {"Authorization": f"Bearer {rig.gateway.admin_secret}"}
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/health") as answer:
                assert answer.status == 200
            for route in ("/admin/sessions", "/admin/sessions/seal", "/metrics"):
                async with http.post(f"http://127.0.0.1:{port}{route}", json={}, headers=secret) as answer:
                    assert answer.status == 404


async def test_a_used_up_budget_says_which_and_max_tokens_goes_down_only(rig: Rig) -> None:
    rollout, session = await rig.open(budget=SessionBudget(max_turns=2, max_context=2048))
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        assert (await llm.complete([user("oak")], max_tokens=3)).usage.completion_tokens <= 3
        assert (await llm.complete([user("elm")], max_tokens=9999)).usage.completion_tokens <= 24
        with pytest.raises(BudgetExhausted) as turns:
            await llm.complete([user("ash")])
    assert turns.value.which == "turns" and (await rig.seal(rollout)).exhausted == "turns"
    rollout, session = await rig.open(budget=SessionBudget(max_turns=9, max_context=8))
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        with pytest.raises(BudgetExhausted) as context:
            await llm.complete([user("oak " * 40)])
    assert context.value.which == "context" and (await rig.seal(rollout)).steps == 0


async def test_greedy_sampling_overrides_are_sent_and_recorded(rig: Rig) -> None:
    rig.start_ingest()
    replies = []
    for _ in range(2):
        rollout, session = await rig.open(sampling={"temperature": 0.0})
        async with NativeLlm(rig.gateway.url, session.token) as llm:
            replies.append((await llm.complete([user("oak")])).content)
        await rig.stored(rollout, 1)
    assert replies[0] == replies[1]
    (row,) = await rig.rows("SELECT params FROM sampling")
    assert row.params["temperature"] == 0.0


async def post(rig: Rig, path: str, body: Any, **headers: str) -> Any:
    async with (
        aiohttp.ClientSession() as http,
        http.post(rig.gateway.url + path, json=body, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_an_equal_body_is_a_sibling_unless_a_retry_header_says_that_it_is_a_retry(rig: Rig) -> None:
    rollout, session = await rig.open()
    body = {"model": "policy", "messages": [user("oak")]}
    path = f"{session.path}/chat/completions"
    first = await post(rig, path, body)
    again = await post(rig, path, body, **{"x-stainless-retry-count": "1"})
    assert again["choices"] == first["choices"] and len(rig.proxy.sent) == 1
    await post(rig, path, body)
    assert len(rig.proxy.sent) == 2 and rig.proxy.sent[0][0] == rig.proxy.sent[1][0]
    assert (await rig.seal(rollout)).steps == 2


async def test_equal_bodies_in_flight_share_one_call(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, released = watched_calls(monkeypatch), await held_generation(rig)
    rollout, session = await rig.open()
    replies: list[Any] = []

    async def ask() -> None:
        replies.append(await post(rig, f"{session.path}/chat/completions", {"messages": [user("oak")]}))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
        await eventually(lambda: calls and calls[0].waiting == 3)
        released.set()
    assert len(rig.proxy.sent) == 1 and len({repr(reply["choices"]) for reply in replies}) == 1
    assert (await rig.seal(rollout)).steps == 1


async def test_equal_bodies_of_other_agents_and_with_other_metadata_are_calls_of_their_own(rig: Rig) -> None:
    rig.start_ingest()
    rollout, session = await rig.open()
    body = {"messages": [user("oak")]}

    async def ask(more: Any, agent: str) -> None:
        await post(rig, f"{session.path}/chat/completions", {**body, **more}, **{"x-penstock-agent": agent})

    async with anyio.create_task_group() as tasks:
        for agent in ("main", "left", "right"):
            tasks.start_soon(ask, {}, agent)
        for sample in ("1", "2"):
            tasks.start_soon(ask, {"metadata": {"sample": sample}}, "main")
    assert len(rig.proxy.sent) == 5
    assert sorted(step.agent for step in await rig.stored(rollout, 5)) == [
        "left",
        "main",
        "main",
        "main",
        "right",
    ]


@pytest.fixture
async def slow(open_here: OpenRig) -> AsyncIterator[Rig]:
    """Calls take a while: the random policy's likeliest tokens go round in circles and never end."""
    async with open_here(max_new_tokens=1000, temperature=0.0) as rig:
        await rig.publish(0)
        yield rig


async def give_up(rig: Rig, path: str) -> None:
    """Request a completion, and leave after its first tokens."""
    rig.proxy.stops = [30]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post, rig, path, {"messages": [user("oak")]})
        await eventually(lambda: rig.proxy.standing)
        tasks.cancel_scope.cancel()


async def test_a_call_that_its_harness_gave_up_is_recorded_as_undelivered(slow: Rig) -> None:
    slow.start_ingest()
    rollout, session = await slow.open()
    await give_up(slow, f"{session.path}/chat/completions")
    (step,) = await slow.stored(rollout, 1)
    assert len(step.action) == 30
    seal = await slow.seal(rollout)
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [(0, "undelivered")]
    (row,) = await slow.rows("SELECT finish FROM steps")
    assert row.finish == "abort"


async def test_a_restarted_gateway_still_knows_what_was_not_delivered(slow: Rig) -> None:
    rollout, session = await slow.open()
    await give_up(slow, f"{session.path}/chat/completions")
    await until_row(slow, "SELECT 1 FROM sessions WHERE seal -> 'marks' -> '0' = '[\"undelivered\"]'")
    await slow.stop_gateway()
    async with slow.another_gateway() as (_, admin):
        seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [(0, "undelivered")]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_the_end_of_the_attempt_cuts_off_is_recorded_and_its_harness_gets_a_refusal(
    slow: Rig, stream: bool, restarted: bool
) -> None:
    rollout, session = await slow.open()
    slow.start_ingest()
    slow.proxy.stops = [30]
    answers: list[tuple[int, str]] = []

    async def ask() -> None:
        body = {"messages": [user("oak")], "stream": stream}
        url = f"{session.base_url}/chat/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
            answers.append((response.status, await response.text()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await eventually(lambda: slow.proxy.standing)
        await slow.admin.cut_off(rollout=rollout, attempt=1, epoch=1)
    [(status, text)] = answers
    assert status == (200 if stream else 409) and "the reply was cut off" in text
    # The next step of a task goes on with the session.
    await post(slow, f"{session.path}/chat/completions", {"messages": [user("elm")], "max_tokens": 3})
    if restarted:
        await slow.stop_gateway()
        async with slow.another_gateway() as (_, admin):
            seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    else:
        seal = await slow.seal(rollout)
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [(0, "cut_off")]
    steps = await slow.stored(rollout, 2)
    assert [(str(step.finish), *step.marks) for step in steps] == [("abort", "cut_off"), ("length",)]


async def test_calls_to_auxiliary_models_are_answered_and_marked_also_after_a_restart(rig: Rig) -> None:
    rollout, session = await rig.open(auxiliary=["*-mini"])
    for model in ("policy-mini", "policy"):
        await post(rig, f"{session.path}/chat/completions", {"model": model, "messages": [user(model)]})
    await until_row(rig, "SELECT 1 FROM sessions WHERE seal -> 'marks' -> '0' = '[\"auxiliary\"]'")
    await rig.stop_gateway()
    async with rig.another_gateway() as (_, admin):
        await post(rig, f"{session.path}/chat/completions", {"model": "x-mini", "messages": [user("elm")]})
        seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert seal.steps == 3
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [(0, "auxiliary"), (2, "auxiliary")]


async def test_a_session_that_is_opened_again_after_a_restart_keeps_its_marks(rig: Rig) -> None:
    rollout, session = await rig.open(auxiliary=["*-mini"])
    body = {"model": "policy-mini", "messages": [user("oak")]}
    await post(rig, f"{session.path}/chat/completions", body)
    await until_row(rig, "SELECT 1 FROM sessions WHERE seal -> 'marks' -> '0' = '[\"auxiliary\"]'")
    await rig.stop_gateway()
    async with rig.another_gateway() as (_, admin):
        budget = SessionBudget(max_turns=20, max_context=2048)
        await admin.open_session(run=rig.run, rollout=rollout, attempt=1, epoch=1, budget=budget)
        seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [(0, "auxiliary")]


async def test_a_mark_is_as_durable_as_its_step(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(store: SessionStore, session: Session) -> None:
        """The gateway dies between the step and the row."""

    monkeypatch.setattr(SessionStore, "save_progress", never)
    rollout, session = await rig.open(auxiliary=["*-mini"])
    body = {"model": "policy-mini", "messages": [user("oak")]}
    await post(rig, f"{session.path}/chat/completions", body)
    await rig.stop_gateway()
    async with rig.another_gateway() as (_, admin):
        seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [(0, "auxiliary")]


async def test_sealing_cancels_calls_in_flight_and_nothing_is_committed_afterwards(slow: Rig) -> None:
    rollout, session = await slow.open()
    problems: list[str] = []

    async def ask() -> None:
        async with NativeLlm(slow.gateway.url, session.token) as llm:
            try:
                await llm.complete([user("oak")])
            except SessionOver as over:
                problems.append(str(over))

    slow.proxy.stops = [10]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await eventually(lambda: slow.proxy.standing)
        seal = await slow.seal(rollout)
        assert seal.steps == 0 and seal == await slow.seal(rollout)
    assert len(problems) == 1
    await eventually(lambda: not slow.proxy.busy)  # the abort reached the rollout server as well
    assert (await slow.seal(rollout)).steps == 0


async def test_a_restarted_gateway_knows_its_sessions_and_a_retry_gets_the_recorded_reply(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    rollout, session = await rig.open(group=4711)
    path = f"{session.path}/chat/completions"
    history: list[Any] = [user("oak")]
    first = await post(rig, path, {"messages": history})  # stays in the journal: the ingest does not run
    history += [first["choices"][0]["message"], user("go on")]
    second = await post(rig, path, {"messages": history})
    await rig.stop_gateway()
    async with rig.another_gateway() as (gateway, admin):
        assert gateway.url == rig.gateway.url and gateway.admin_secret == rig.gateway.admin_secret
        rig.start_ingest()
        # It is unknown whether the reply arrived: it is the same one.
        again = await post(rig, path, {"messages": history})
        assert again["choices"] == second["choices"] and len(rig.proxy.sent) == 2
        history += [again["choices"][0]["message"], user("and on")]
        await post(rig, path, {"messages": history})
        seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
        steps = await rig.stored(rollout, 3)
    assert seal.steps == 3 and [step.kind.value for step in steps] == ["root", "continues", "continues"]
    assert rig.proxy.sent[2][0] == steps[2].full[: steps[2].state_len].tolist()
    sealed = [line for line in "".join(capfd.readouterr()).splitlines() if "session.sealed" in line]
    assert sealed and all("4711" in line for line in sealed), "its group is in the log after the restart, too"


async def test_a_later_epoch_of_an_attempt_is_served_the_ingested_steps_and_goes_on_after_them(
    rig: Rig,
) -> None:
    rig.start_ingest()
    rollout, old = await rig.open()
    async with NativeLlm(rig.gateway.url, old.token) as llm:
        reply = await llm.complete([user("oak")])
        await rig.stored(rollout, 1)
        async with rig.engine.begin() as connection:
            await connection.execute(text("UPDATE rollouts SET lease_epoch = 2"))
        with pytest.raises(SessionOver, match="not current"):
            await rig.open(rollout, epoch=1)
        _, new = await rig.open(rollout, epoch=2)
        with pytest.raises(SessionOver):
            await llm.complete([user("elm")])
    async with NativeLlm(rig.gateway.url, new.token) as llm:
        again = await llm.complete([user("oak")])
        next_reply = await llm.complete([user("oak"), reply.message(), user("go on")])
    assert (again.step, again.message()) == (0, reply.message()) and next_reply.step == 1
    assert len(rig.proxy.sent) == 2
    assert (await rig.seal(rollout, epoch=2)).steps == 2
    assert [step.kind.value for step in await rig.stored(rollout, 2)] == ["root", "continues"]
