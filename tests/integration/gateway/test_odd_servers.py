"""A gateway before rollout servers whose replies are odd: it goes on, names the server, and charges nothing to the policy."""

import json
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest

from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.states import ServerState
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import bad_request, unavailable
from orchestrator.gateway.render import load_renderer
from orchestrator.gateway.servers.lease import ServerLease
from orchestrator.gateway.servers.pool import ServerPool
from orchestrator.gateway_client import NativeLlm, OpenSession
from tests.integration.gateway.rig import OpenRig, Rig, until_row
from tests.integration.gateway.wires_rig import ask
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
POLICY_VERSIONS = 2

DEEP = b"[" * 3000 + b"]" * 3000
HUGE = b'{"loads":[{"num_waiting_reqs":1' + b"0" * 320 + b"}]}"
MESSAGES = [{"role": "user", "content": "oak"}]


async def ready(rig: Rig, version: int) -> None:
    server = rig.gateway.pool.servers[0]
    await eventually(lambda: server.ready and server.version == version)


async def complete(rig: Rig) -> None:
    _, session = await rig.open()
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete(MESSAGES, max_tokens=4)


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/model_info", 200, DEEP),
        ("/model_info", 500, DEEP),
        ("/v1/loads", 200, DEEP),
        ("/v1/loads", 200, HUGE),
        ("/server_info", 200, b'{"max_req_input_len": "x"}'),
        ("/update_weights_from_disk", 200, DEEP),
        ("/update_weights_from_disk", 400, b'{"error":{"message":"bad\\u0000weights' + b"s" * 600 + b'"}}'),
    ],
)
async def test_a_gateway_goes_on_through_the_odd_replies_of_a_server_and_uses_it_afterwards(
    rig: Rig, path: str, status: int, body: bytes
) -> None:
    await ready(rig, 0)
    seen = rig.proxy.seen.count(path)
    rig.proxy.odd[path] = status, body
    await rig.publish(1)
    await eventually(lambda: rig.proxy.seen.count(path) >= seen + 3)
    if path == "/update_weights_from_disk":
        await until_row(
            rig, "SELECT 1 FROM rollout_servers WHERE detail ~ 'update_weights|refuses version 1'"
        )
    rig.proxy.odd.clear()
    await ready(rig, 1)
    await complete(rig)


@pytest.mark.parametrize("exchanged", [True, False])
async def test_a_server_without_digests_that_refuses_weights_serves_on_only_if_its_canary_shows_the_old_ones(
    open_here: OpenRig, exchanged: bool
) -> None:
    """SGLang's return to the old weights, after it could not load new ones, reads the new directory again."""
    async with open_here() as rig:
        proxy, server = rig.proxy, rig.gateway.pool.servers[0]
        proxy.untold = ("weights_digest",)
        await rig.publish(0)
        await ready(rig, 0)
        proxy.odd["/model_info"] = 200, msgspec.json.encode(await server.client.model_info())
        refusing = proxy.misreported if exchanged else proxy.odd
        refusing["/update_weights_from_disk"] = 400, b"Failed to update. Rolling back to original weights."
        del proxy.seen[:]
        await rig.publish(1)
        state = ServerState.FAILED if exchanged else ServerState.READY
        await until_row(
            rig, f"SELECT 1 FROM rollout_servers WHERE detail ~ 'refuses version 1' AND state = '{state}'"
        )
        updated, flushed = (proxy.seen.index(path) for path in ("/update_weights_from_disk", "/flush_cache"))
        assert updated < flushed < proxy.seen.index("canary")
        if exchanged:
            assert not server.ready
        else:
            await ready(rig, 0)
        proxy.odd.clear()
        proxy.misreported.clear()
        await ready(rig, 1)


async def test_a_row_that_only_informs_never_ends_the_syncer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(rig, 0)
    write = ServerLease.write

    async def failing(lease: ServerLease, state: ServerState, *rest: Any) -> None:
        if state is ServerState.READY and "refuses" in str(rest):
            raise RuntimeError("the data pool cannot take this row")
        await write(lease, state, *rest)

    monkeypatch.setattr(ServerLease, "write", failing)
    rig.proxy.odd["/update_weights_from_disk"] = 400, b"no"
    await rig.publish(1)
    value = rig.gateway.metrics.registry.get_sample_value
    await eventually(lambda: (value("penstock_gateway_faults_total", {"where": "row"}) or 0.0) > 1)
    rig.proxy.odd.clear()
    await ready(rig, 1)


async def status_of(rig: Rig, token: str) -> int:
    """The status of one completion request, without any retry."""
    async with aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {token}"}
        body: dict[str, Any] = {"model": "policy", "messages": MESSAGES}
        async with http.post(f"{rig.gateway.url}/v1/chat/completions", json=body, headers=headers) as answer:
            return answer.status


async def test_calls_that_get_only_odd_replies_fail_as_the_platforms_fault(rig: Rig) -> None:
    await ready(rig, 0)
    rollout, session = await rig.open()
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop"},
        "weight_version": 0,
        "weight_versions": [{"version": 0, "start": 0, "end": 1}],
        "output_token_logprobs": [[-0.5, 1, None]],
        "prompt_tokens": 1,
        "completion_tokens": 1,
    }
    rig.proxy.odd["/generate"] = 200, json.dumps({"text": "", "output_ids": [1], "meta_info": meta}).encode()
    assert await status_of(rig, session.token) == 503
    assert (await rig.seal(rollout)).failing is not None
    rig.proxy.odd.clear()
    await complete(rig)


async def chat(rig: Rig, session: OpenSession, text: str, status: int, model: str = "policy") -> None:
    request = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    assert (await ask(rig, session.path + "/chat/completions", request))[0] == status


def failed_calls(
    monkeypatch: pytest.MonkeyPatch, *numbers: int, first: anyio.Event | None = None
) -> list[int]:
    """The calls that reach the servers, from 0 on. Those of these numbers fail there; the first one waits for its event."""
    generate, started = ServerPool.generate, list[int]()

    async def generated(*given: Any) -> Any:
        started.append(number := len(started))
        if number in numbers:
            raise unavailable(FAILED)
        if number == 0 and first is not None:
            await first.wait()
        return await generate(*given)

    monkeypatch.setattr(ServerPool, "generate", generated)
    return started


FAILED = "every rollout server that was tried failed"


async def test_a_call_that_the_platform_failed_is_not_forgotten_for_an_older_one_that_is_served_after_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(rig, 0)
    rollout, session = await rig.open()
    go_on = anyio.Event()
    started = failed_calls(monkeypatch, 1, first=go_on)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(chat, rig, session, "older", 200)
        await eventually(lambda: started)
        await chat(rig, session, "fails", 503)
        go_on.set()
    seal = await rig.seal(rollout)
    assert (seal.failing, seal.last_failed) == (FAILED, FAILED)


async def test_a_failed_call_is_forgotten_for_a_later_one_and_an_auxiliary_one_is_not_the_last(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(rig, 0)
    rollout, session = await rig.open(auxiliary=["*-small"])
    failed_calls(monkeypatch, 0, 2)
    await chat(rig, session, "fails", 503)
    await chat(rig, session, "later", 200)
    await chat(rig, session, "title", 503, "policy-small")
    seal = await rig.seal(rollout)
    assert (seal.failing, seal.last_failed) == (FAILED, None)


@pytest.mark.parametrize("stop", [None, "oak"], ids=["end token", "stop string"])
async def test_an_action_that_ends_with_the_last_token_it_may_have_is_served_and_recorded_as_complete(
    rig: Rig, stop: str | None
) -> None:
    """A server checks the length first, so its reply names the length."""
    await ready(rig, 0)
    rig.start_ingest()
    rollout, session = await rig.open()
    renderer = load_renderer(rig.policies.model)
    ids = [*renderer.action(Turn(role="assistant", text="an oak"))]
    assert ids[-1] in renderer.stop_ids
    if stop is not None:
        ids.pop()
    digest = (await rig.gateway.pool.servers[0].client.model_info()).weights_digest
    meta = {
        "id": "r",
        "finish_reason": {"type": "length", "length": len(ids)},
        "weight_version": "0",
        "weight_versions": [{"version": "0", "start": 0, "end": len(ids), "weights_digest": digest}],
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
        "completion_tokens": len(ids),
    }
    rig.proxy.odd["/generate"] = 200, json.dumps({"text": "", "output_ids": ids, "meta_info": meta}).encode()
    headers = {"Authorization": f"Bearer {session.token}"}
    body: dict[str, Any] = {"model": "policy", "messages": MESSAGES, "max_tokens": len(ids), "stop": stop}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{rig.gateway.url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        [choice] = (await answer.json())["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "an" if stop else "an oak")
    [step] = await rig.stored(rollout, 1)
    assert (step.finish, step.parse, step.action.tolist()) == (Finish.STOP, ParseStatus.OK, ids)


@pytest.mark.parametrize(
    ("error", "status", "ours"), [(TypeError("odd"), 500, True), (bad_request("no"), 400, False)]
)
async def test_a_failure_while_servers_generate_is_the_platforms_unless_it_says_otherwise(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, ours: bool
) -> None:
    await ready(rig, 0)
    rollout, session = await rig.open()

    async def failing(*given: Any) -> Any:
        raise error

    monkeypatch.setattr(ServerPool, "generate", failing)
    assert await status_of(rig, session.token) == status
    assert ((await rig.seal(rollout)).failing is not None) is ours
