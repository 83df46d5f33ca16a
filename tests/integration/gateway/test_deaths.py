"""kill -9 of a gateway: its sessions, and the rollout servers that it owned."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.server import Gateway
from orchestrator.gateway.servers.client import RolloutServerClient
from orchestrator.gateway_client import GatewayAdmin, NativeLlm, OpenSession, SessionBudget
from orchestrator.pool.engine import Role, open_engine
from tests.integration.audit.audited import no_violations
from tests.integration.gateway.gateway_process import gateway_process, settings_in
from tests.integration.gateway.rig import Policies, Rig, open_rig
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]
POLICY_VERSIONS = 3

LEASE_S = 12.0  # a gateway that lives keeps its servers on a busy machine, too
# The checks on records that the gateway writes; rollouts are leased by hand here.
RECORDED = (
    "digests of steps",
    "digests of prompts",
    "digests of sampling parameters",
    "steps are of published versions",
    "ready rollout servers serve a published version",
)


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    """Services without a gateway, which each test starts as a process, and a server as new. Calls take a while."""
    async with RolloutServerClient(server_url) as server:
        await server.update_weights(str(policies.model), "default")
    async with open_rig(
        database_url,
        nats_server.url,
        server_url,
        policies,
        tmp_path,
        sections={"servers": {"lease_ttl_s": LEASE_S, "probe_s": 0.1}},
        max_new_tokens=400,
        temperature=0.0,
    ) as rig:
        await rig.stop_gateway()
        await rig.publish(0)
        rig.start_ingest()
        yield rig
        await no_violations(rig.engine, rig.run, only=RECORDED)


async def until_row(rig: Rig, query: str) -> Any:
    found = await eventually(lambda: rig.rows(query))
    return found[0]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


FEW, MANY = (
    SessionBudget(max_turns=20, max_context=2048),
    SessionBudget(max_turns=100_000, max_context=10_000_000),
)


async def opened(rig: Rig, admin: GatewayAdmin, budget: SessionBudget = FEW) -> tuple[int, OpenSession]:
    rollout = await rig.new_rollout()
    return rollout, await admin.open_session(run=rig.run, rollout=rollout, attempt=1, epoch=1, budget=budget)


async def test_after_a_kill_in_mid_call_the_retry_continues_the_same_session_and_nothing_is_recorded_twice(
    rig: Rig, tmp_path: Path
) -> None:
    texts: list[str] = []
    async with gateway_process(rig, tmp_path) as (admin, first):
        rollout, session = await opened(rig, admin)
        async with openai.AsyncOpenAI(
            base_url=session.base_url, api_key=session.token, max_retries=0
        ) as chat:
            history: list[Any] = [user("oak")]
            reply = await chat.chat.completions.create(model="policy", messages=history, max_tokens=8)
            history += [reply.choices[0].message.model_dump(exclude_none=True), user("go on")]

            async def answer() -> str | None:
                """None: the connection broke, or the stream ended before its answer."""
                text = ""
                with contextlib.suppress(openai.APIConnectionError, httpx.TransportError):
                    async for chunk in await chat.chat.completions.create(
                        model="policy", messages=history, stream=True
                    ):
                        for choice in chunk.choices:
                            text += choice.delta.content or ""
                            if choice.finish_reason is not None:
                                return text
                return None

            async def ask() -> None:
                """A harness that tries again, with an equal body and no retry header, until it has a whole answer."""
                text = await eventually(answer, lambda text: text is not None, every_s=0.1)
                assert text is not None
                texts.append(text)

            rig.proxy.stops = [30]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await eventually(lambda: rig.proxy.standing)
                first.kill()
                first.wait()
                async with gateway_process(rig, tmp_path) as (admin, _):
                    await eventually(lambda: texts)
                    history += [{"role": "assistant", "content": texts[0]}, user("and on")]
                    await chat.chat.completions.create(model="policy", messages=history, max_tokens=8)
                    seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
                    steps = await rig.stored(rollout, 3)
    assert seal.steps == len(steps) == 3 and seal.marks == ()
    assert [step.kind.value for step in steps] == ["root", "continues", "continues"]
    lost, again = rig.proxy.requests[1:3]
    assert lost["input_ids"] == again["input_ids"] == steps[1].full[: steps[1].state_len].tolist()
    assert len(rig.proxy.requests) == 4 and len(rig.proxy.sent) == 3


async def test_a_reply_that_was_recorded_before_the_kill_is_served_again_not_generated_again(
    rig: Rig, tmp_path: Path
) -> None:
    async with gateway_process(rig, tmp_path) as (admin, first):
        rollout, session = await opened(rig, admin)
        async with openai.AsyncOpenAI(
            base_url=session.base_url, api_key=session.token, max_retries=0
        ) as chat:
            request: Any = {"model": "policy", "messages": [user("oak")], "max_tokens": 20}
            before = await chat.chat.completions.create(**request)
            first.kill()  # and the reply is lost on the way
            first.wait()
            async with gateway_process(rig, tmp_path) as (admin, _):
                after = await chat.chat.completions.create(**request)
                assert after.choices == before.choices
                seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
                assert seal.steps == len(await rig.stored(rollout, 1)) == len(rig.proxy.requests) == 1
    updates = rig.proxy.seen.count("/update_weights_from_disk")
    assert updates == 1, "a gateway that comes back finds its server at the version: it is not paused again"


async def test_a_stopping_gateway_answers_with_503_until_it_is_unreachable(rig: Rig) -> None:
    statuses: list[int] = []
    scope, stopping = anyio.CancelScope(), anyio.Event()
    opened_at: list[tuple[int, OpenSession]] = []

    async def gateway() -> None:
        with scope:
            async with rig.another_gateway() as (_, admin):
                opened_at.append(await opened(rig, admin, MANY))
                await anyio.sleep_forever()

    async def ask(name: str, url: str, token: str) -> None:
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
            for turn in range(10_000):
                body = {"model": "policy", "messages": [user(f"{name} {turn}")], "max_tokens": 8}
                try:
                    answer = await client.post("/chat/completions", json=body)
                except httpx.TransportError:
                    return
                statuses.append(answer.status_code)
                assert stopping.is_set() or answer.status_code == 200, answer.text
                assert answer.status_code in (200, 503), answer.text

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway)
            await eventually(lambda: opened_at)
            ((_, session),) = opened_at
            for name in ("oak", "elm", "ash", "fir"):
                tasks.start_soon(ask, name, session.base_url, session.token)
            await eventually(lambda: len(statuses) >= 8)
            stopping.set()
            scope.cancel()
    assert 200 in statuses


async def test_the_rollout_servers_of_a_gateway_that_dies_go_to_another_one(rig: Rig, tmp_path: Path) -> None:
    seen = rig.proxy.seen
    async with gateway_process(rig, tmp_path / "one") as (_, owner):
        first = await until_row(rig, "SELECT owner, lease_epoch FROM rollout_servers WHERE state = 'ready'")
        async with (
            open_engine(rig.settings.database_url, Role.GATEWAY) as engine,
            Gateway.open(settings_in(rig, tmp_path / "two"), engine, rig.context.bus, rig.run_id) as gateway,
            GatewayAdmin(gateway.url, gateway.admin_secret) as admin,
        ):
            (server,) = gateway.pool.servers
            rollout, session = await opened(rig, admin)
            async with NativeLlm(gateway.url, session.token) as llm:
                await llm.complete([user("oak")], max_tokens=4)
                await rig.publish(1)
                await eventually(lambda: server.version == 1)
                await llm.complete([user("elm")], max_tokens=4)
                assert (seen.count("/update_weights_from_disk"), seen.count("/pause_generation")) == (2, 2)
                kept = await until_row(rig, "SELECT owner, lease_epoch FROM rollout_servers")
                assert kept == first, "the second gateway only read what the owner wrote"

                owner.kill()
                owner.wait()
                query = f"SELECT owner, lease_epoch FROM rollout_servers WHERE owner <> '{first.owner}'"
                second = await until_row(rig, query)
                assert second.lease_epoch == first.lease_epoch + 1
                assert server.ready, "calls continue"
                await rig.publish(2)
                await eventually(lambda: server.version == 2)
                await llm.complete([user("ash")], max_tokens=4)
            seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert seal.versions == (0, 1, 2) and seal.marks == ()
    (row,) = await rig.rows("SELECT state, version FROM rollout_servers")
    assert (row.state, row.version) == ("ready", 2)
