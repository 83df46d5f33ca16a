"""Budgets of a session whose calls run at once, are not of its conversation, or continue where there is less room."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.render import load_renderer
from orchestrator.gateway.servers.client import CONTEXT_KEPT
from orchestrator.gateway_client import BudgetExhausted, NativeLlm, OpenSession, SessionBudget
from tests.contract.rollout_server import running_server
from tests.integration.gateway.rig import Policies, Rig, open_rig
from tests.integration.gateway.test_retries import body, post
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

LONG = 900


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    """Calls take as long as they may: the likeliest tokens never end."""
    async with open_rig(
        database_url, nats_server.url, server_url, policies, tmp_path, max_new_tokens=LONG, temperature=0.0
    ) as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].ready)
        yield rig


@pytest.fixture
async def pair(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    """As `rig`, with a second server, which takes prompts of 594 tokens at most, and no calls yet."""
    with running_server(policies.model, "--max-total-tokens", "600") as small:
        urls = [server_url, small.url]
        async with open_rig(
            database_url, nats_server.url, urls, policies, tmp_path, max_new_tokens=LONG, temperature=0.0
        ) as rig:
            await rig.publish(0)
            await eventually(lambda: all(server.ready for server in rig.gateway.pool.servers))
            rig.gateway.pool.drain({rig.proxies[1].url})
            yield rig


async def ask(rig: Rig, session: OpenSession, text: str = "oak", **options: Any) -> str:
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        return (await llm.complete([{"role": "user", "content": text}], **options)).finish


async def test_a_call_that_a_smaller_server_takes_over_ends_by_length_and_a_prompt_that_it_has_no_room_for_is_too_long(
    pair: Rig,
) -> None:
    pool, (large, small) = pair.gateway.pool, pair.proxies
    finished: list[str] = []

    async def answer(session: OpenSession) -> None:
        finished.append(await ask(pair, session))

    for cut, sampled in (
        (700, 700),
        (30, 594),
    ):  # the tokens from the first server, and the length of the state and action then
        pool.drain({small.url})
        del large.requests[:]
        large.stops = [cut]
        rollout, session = await pair.open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, session)
            await eventually(lambda: large.standing)
            pool.drain({large.url})
            large.go_on()
        prompt = len(large.requests[0]["input_ids"]) if sampled == 594 else 0
        assert (await pair.seal(rollout)).sampled_tokens == sampled - prompt
    assert finished == ["length", "length"]

    pool.drain({large.url, small.url})
    rollout, session = await pair.open()
    async with anyio.create_task_group() as tasks:

        async def refused() -> None:
            with pytest.raises(BudgetExhausted, match=r"prompt is too long: .* is 594 tokens"):
                await ask(pair, session, "x" * 1_000)

        tasks.start_soon(refused)
        await eventually(
            lambda: pair.admin.activity(rollout=rollout, attempt=1, epoch=1),
            lambda seen: seen.held_s,
        )
        pool.drain({large.url})
    assert (await pair.seal(rollout)).exhausted == "context"


async def test_calls_that_run_at_once_sample_no_more_than_the_session_may_in_all(rig: Rig) -> None:
    rollout, session = await rig.open(
        budget=SessionBudget(max_turns=20, max_context=2048, max_total_tokens=100)
    )
    async with anyio.create_task_group() as tasks:
        for text in ("oak", "elm", "ash"):
            tasks.start_soon(post, rig, session, body(text, False, max_tokens=40))
    assert (await rig.seal(rollout)).sampled_tokens == 100
    limits = [each["sampling_params"]["max_new_tokens"] for each in rig.proxy.requests]
    assert limits == [40, 40, 20], "the third waits for what the others leave"


async def test_a_call_that_finds_the_budget_used_up_by_earlier_calls_is_refused(rig: Rig) -> None:
    rollout, session = await rig.open(
        budget=SessionBudget(max_turns=20, max_context=2048, max_total_tokens=40)
    )
    answers: list[tuple[int, str]] = []

    async def answer(text: str) -> None:
        answers.append(await post(rig, session, body(text, False, max_tokens=40)))

    async with anyio.create_task_group() as tasks:
        for text in ("oak", "elm"):
            tasks.start_soon(answer, text)
    seal = await rig.seal(rollout)
    assert sorted(status for status, _ in answers) == [200, 400] and "(tokens) is used up" in answers[-1][1]
    assert (seal.sampled_tokens, seal.exhausted) == (40, "tokens")


async def test_a_call_that_is_not_of_the_conversation_takes_no_turn_from_it_and_none_has_to_be_left_for_it(
    rig: Rig,
) -> None:
    rollout, session = await rig.open(
        budget=SessionBudget(max_turns=1, max_context=2048), auxiliary=["*-mini"]
    )
    title = {**body("a title?", False, max_tokens=4), "model": "policy-mini"}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post, rig, session, {**title, "max_tokens": LONG})
        await eventually(lambda: rig.proxy.requests)
        assert (await post(rig, session, body("oak", False, max_tokens=4)))[0] == 200
        assert (await post(rig, session, title))[0] == 200
    assert len(rig.proxy.requests) == 3
    assert "(turns) is used up" in (await post(rig, session, body("elm", False)))[1]
    seal = await rig.seal(rollout)
    assert [mark.reason for mark in seal.marks] == ["auxiliary"] * 2 and seal.exhausted == "turns"


async def test_a_call_aside_that_is_too_long_does_not_exhaust_the_session(rig: Rig) -> None:
    rollout, session = await rig.open(
        budget=SessionBudget(max_turns=4, max_context=100), auxiliary=["*-mini"]
    )
    status, answer = await post(rig, session, {**body("x" * 2_000, False), "model": "policy-mini"})
    assert status == 400 and "prompt is too long" in answer
    assert (await rig.seal(rollout)).exhausted is None


async def test_calls_of_a_demonstration_that_run_at_once_say_each_reply_once(rig: Rig) -> None:
    script = [{"content": f"reply {n}"} for n in range(6)]
    rollout, session = await rig.open(scripted=script, auxiliary=["*-mini"])
    replies: list[str] = []

    async def answer(text: str, model: str = "policy") -> None:
        status, reply = await post(rig, session, {**body(text, False), "model": model})
        assert status == 200
        replies.append(reply)

    async with anyio.create_task_group() as tasks:
        for n in range(6):
            tasks.start_soon(answer, f"oak {n}")
        tasks.start_soon(answer, "a title?", "policy-mini")
    assert sorted(replies) == ["ok", *(f"reply {n}" for n in range(6))]
    assert "(turns) is used up" in (await post(rig, session, body("and?", False)))[1]
    assert (await rig.seal(rollout)).steps == 7


async def test_a_session_without_a_bound_of_its_own_has_the_context_of_the_model_and_the_servers(
    rig: Rig, policies: Policies
) -> None:
    servers = rig.gateway.pool.capacity
    model = load_renderer(policies.model).context - CONTEXT_KEPT
    rollout, session = await rig.open(budget=SessionBudget(max_turns=4, max_context=0))
    assert session.context == min(model, servers)
    assert (await post(rig, session, body("oak", False, max_tokens=4)))[0] == 200
    assert (await rig.seal(rollout)).exhausted is None
    for limit in (100, 10**9):
        _, session = await rig.open(budget=SessionBudget(max_turns=4, max_context=limit))
        assert session.context == min(limit, model, servers)
