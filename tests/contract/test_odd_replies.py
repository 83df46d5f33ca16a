"""Whatever a rollout server replies on any route, the client gives it back checked, or names it as a fault of that server."""

import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import numpy as np
import pytest
from aiohttp import web

from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers.client import (
    RequestRefused,
    RolloutServerBroken,
    RolloutServerClient,
    SamplingParams,
    WeightUpdateRefused,
)
from orchestrator.gateway.servers.client.errors import MAX_MESSAGE
from orchestrator.gateway.servers.client.replies import MAX_BYTES
from orchestrator.gateway.servers.health import HealthProbe
from orchestrator.gateway.servers.in_flight import InFlight
from orchestrator.gateway.servers.pool import ServerPool, preferred
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway.servers.transfer import TransferFailed, sending
from tests.contract.answering import Answer, always, answering
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

IDS = [1, 2, 3]
SAMPLING = SamplingParams(max_new_tokens=4)
Call = Callable[[RolloutServerClient], Awaitable[Any]]

ROUTES: dict[str, Call] = {
    "generate": lambda client: client.generate(IDS, SAMPLING),
    "canary": lambda client: client.prompt_logprobs(IDS),
    "model_info": lambda client: client.model_info(),
    "server_info": lambda client: client.server_info(),
    "loads": lambda client: client.loads(),
    "update": lambda client: client.update_weights("/models/a", "1"),
}
DEEP = b"[" * 3000 + b"]" * 3000
DIGITS = b"9" * 5000


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        b'{"meta_info":' + DEEP + b',"loads":' + DEEP + b',"success":' + DEEP + b"}",
        b"[" * 100_000,
        b"\xff",
        b"[]",
        b'"text"',
        DIGITS,
        b"",
    ],
    ids=["deep", "deep inside", "unclosed", "no UTF-8", "list", "text", "digits", "empty"],
)
@pytest.mark.parametrize("status", [200, 500])
async def test_a_body_that_no_route_has_is_the_servers_fault(route: str, body: bytes, status: int) -> None:
    async with answering(always(body, status)) as client:
        with pytest.raises(RolloutServerBroken):
            await ROUTES[route](client)


HUGE = 10**320


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("model_info", {"weight_version": 0}),
        ("model_info", {"weight_version": "0", "weights_digest": "a\x00b"}),
        ("model_info", {"weight_version": "0" * 5000}),
        ("server_info", {"max_req_input_len": True}),
        ("server_info", {"max_req_input_len": -1}),
        ("server_info", {"tp_size": "two"}),
        ("server_info", {"tp_size": 0}),
        ("server_info", {"dp_size": []}),
        ("loads", {"loads": []}),
        ("loads", {"loads": [7]}),
        ("loads", {"loads": [{"num_waiting_reqs": HUGE}]}),
        ("loads", {"loads": [{"num_running_reqs": -1}]}),
        ("loads", {"loads": [{"num_used_tokens": "x"}]}),
        ("update", {"success": "yes"}),
        ("update", {"success": False}),
        ("canary", {"meta_info": {"input_token_logprobs": [[None, 1], ["x", 2], [-1.0, 3]]}}),
        ("canary", {"meta_info": {"input_token_logprobs": [[None, 1], [-HUGE, 2], [-1.0, 3]]}}),
        ("canary", {"meta_info": {"input_token_logprobs": [[None, 1], [None, 2], [-1.0, 3]]}}),
        ("canary", {"meta_info": {"input_token_logprobs": [[None, 1], [-1.0, 7], [-1.0, 3]]}}),
        ("canary", {"meta_info": {"input_token_logprobs": []}}),
        ("canary", {"meta_info": {"input_token_logprobs": [[None, 1.0], [-1.0], [-1.0, 3]]}}),
    ],
)
async def test_a_value_of_another_type_or_size_is_the_servers_fault(route: str, body: Any) -> None:
    async with answering(always(json.dumps(body))) as client:
        with pytest.raises(RolloutServerBroken):
            await ROUTES[route](client)


def completion(ids: list[Any] | None = None, logprob: Any = -0.5, **meta: Any) -> dict[str, Any]:
    """A sound reply to `IDS`, but for what is given."""
    ids = [5, 6] if ids is None else ids
    spans = [{"version": "0", "start": 0, "end": len(ids)}] if ids else []
    sound = {
        "id": "r",
        "finish_reason": {"type": "length", "length": len(ids)},
        "weight_version": "0",
        "weight_versions": spans,
        "output_token_logprobs": [[logprob, token, None] for token in ids],
        "prompt_tokens": len(IDS),
        "completion_tokens": len(ids),
    }
    return {"text": "", "output_ids": ids, "meta_info": sound | meta}


async def test_a_sound_reply_is_read_and_so_is_an_abort_in_the_queue() -> None:
    async with answering(always(completion([5, 999])), vocabulary=1000) as client:
        assert (await client.generate(IDS, SAMPLING)).output_ids == (5, 999)
    aborted = completion([], prompt_tokens=0, finish_reason={"type": "abort", "message": "a\x00" * 5000})
    async with answering(always(aborted)) as client:
        message = (await client.generate(IDS, SAMPLING)).finish.message
    assert message is not None and len(message) == MAX_MESSAGE and "\x00" not in message


@pytest.mark.parametrize("spans", [None, [], [{"version": "0", "start": 0, "end": 0}]])
async def test_a_reply_without_tokens_is_read_with_each_form_of_no_spans(spans: Any) -> None:
    """SGLang sends one empty span, of the version at the end of the request."""
    aborted = completion([], finish_reason={"type": "abort", "message": "Aborted"}, weight_versions=spans)
    async with answering(always(aborted)) as client:
        made = await client.generate(IDS, SAMPLING)
    assert not made.spans and made.labels == frozenset({"0"})


async def test_a_call_that_another_gateways_pause_ends_in_the_queue_is_held_whatever_its_form_of_no_spans() -> (
    None
):
    span = {"version": "0", "start": 0, "end": 0}
    aborted = completion([], finish_reason={"type": "abort", "message": "Aborted"}, weight_versions=[span])
    async with (
        answering(always(aborted | {"weight_version": "0"})) as client,
        anyio.create_task_group() as tasks,
    ):
        server = RolloutServer(client)
        server.owned = lambda: False
        server.admit(0)
        pool = ServerPool([server], GatewayMetrics())
        tasks.start_soon(pool.generate, np.array(IDS, dtype="<i4"), SAMPLING, "1:1", InFlight())
        await eventually(lambda: server.syncing_since is not None)
        assert (server.version, server.gate_open, server.broken_replies) == (0, False, 0)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("ids", [[], [5]])
async def test_sglang_tells_no_prompt_of_a_request_that_it_aborted_in_its_queue(ids: list[int]) -> None:
    aborted = completion(ids, finish_reason={"type": "abort", "message": "Abort in waiting queue"})
    del aborted["meta_info"]["prompt_tokens"]
    async with answering(always(aborted)) as client:
        assert (await client.generate(IDS, SAMPLING)).output_ids == tuple(ids)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (completion(prompt_tokens="3"), "prompt_tokens"),
        (completion(prompt_tokens=-99), "prompt_tokens"),
        (completion(prompt_tokens=4), "a prompt of 3 tokens was sent, but prompt_tokens = 4"),
        (completion(weight_version=0), "weight_version"),
        (completion(weight_versions=[{"version": ["0"], "start": 0, "end": 2}]), "version"),
        (completion(weight_versions=[{"version": "0", "start": 0.0, "end": 2.0}]), "start"),
        (completion([5, -7]), "output_ids"),
        (completion([5, 2**40]), "output_ids"),
        (completion([5.9, 6.2]), "output_ids"),
        (completion([5, 1000]), r"output id 1000 is outside the vocabulary \(0 … 999\)"),
        (completion([1, 2, 3, 4, 5]), "5 output ids, but max_new_tokens = 4 was requested"),
        (completion(logprob=-1e39), "output_token_logprobs"),
        (completion(logprob=-HUGE), "output_token_logprobs"),
        (completion(logprob="-0.5"), "output_token_logprobs"),
        (completion(logprob=0.5), "output_token_logprobs"),
        (completion(first_token_latency="x"), "first_token_latency"),
        (completion(queue_time=1e300), "queue_time"),
        (completion(finish_reason=None), "finish_reason"),
        (completion(finish_reason={"type": "stop", "matched": {}}), "matched"),
        (
            completion(finish_reason={"type": "stop", "matched": "NaN happened"}),
            "it stopped at 'NaN happened', which is not a stop string of the request",
        ),
        (completion(weight_versions=[{"version": "0", "start": 0, "end": 1}] * 1025), "weight_versions"),
        (completion(weight_versions=None), r"start SGLang 0\.5\.23 as the rollout server"),
        (completion([5], weight_versions=[{"version": "0", "start": 0, "end": 0}]), "one is empty at 0"),
        (completion([], weight_versions=[{"version": "0", "start": 1, "end": 1}]), "one starts at 1"),
        (completion(routed_experts=7), "routed_experts"),
        (completion() | {"text": 7}, "text"),
        (completion() | {"meta_info": []}, "meta_info"),
    ],
)
async def test_a_completion_that_does_not_answer_its_request_is_the_servers_fault(
    reply: dict[str, Any], reason: str
) -> None:
    async with answering(always(json.dumps(reply)), vocabulary=1000) as client:
        with pytest.raises(RolloutServerBroken, match=reason):
            await client.generate(IDS, SAMPLING)


@pytest.mark.parametrize("status", [200, 404, 429, 500])
async def test_a_call_that_gets_a_broken_reply_goes_on_at_another_server(status: int) -> None:
    calls: list[str] = []

    def serving(reply: Any, status: int = 200) -> Answer:
        generate, others = always(reply, status), always({"weight_version": "0"})

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path != "/generate":
                return await others(request)
            calls.append(str(status) + str(len(calls)))
            return await generate(request)

        return answer

    broken = serving(completion(prompt_tokens="3"), status)
    async with answering(broken) as one, answering(serving(completion())) as two:
        servers = [RolloutServer(one), RolloutServer(two)]
        for server in servers:
            server.admit(0)
        pool = ServerPool(servers, GatewayMetrics())
        key = next(f"{n}:1" for n in range(99) if preferred(servers, f"{n}:1") is servers[0])
        made = await pool.generate(
            np.array(IDS, dtype="<i4"), SamplingParams(max_new_tokens=2), key, InFlight()
        )
    assert made.ids == (5, 6) and calls == [f"{status}0", "2001"]
    assert all(server.ready for server in servers)


@pytest.mark.parametrize("status", [502, 404])
async def test_one_odd_answer_to_a_check_loses_no_calls_and_two_in_a_row_do(status: int) -> None:
    answers = iter([200, status, 200, status, status])

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/model_info":
            return web.Response(status=404)
        return web.json_response({"weight_version": "0"}, status=next(answers))

    async with answering(answer) as client:
        server, call = RolloutServer(client), anyio.CancelScope()
        server.admit(0)
        server.in_flight["r"] = call
        probe = HealthProbe(server, GatewayMetrics(), probe_s=1.0)
        for _ in range(4):
            await probe.check()
            assert server.ready and server.answers and not call.cancel_called
        await probe.check()
        assert call.cancel_called and not server.ready and not server.answers


@pytest.mark.parametrize("route", ROUTES)
async def test_a_reply_is_read_up_to_a_size_and_never_decompressed(route: str) -> None:
    compressed = always(gzip.compress(b" " * 2**20), headers={"Content-Encoding": "gzip"})
    async with answering(compressed) as client:
        with pytest.raises(RolloutServerBroken, match="the reply is compressed"):
            await ROUTES[route](client)
    async with answering(always(b" " * (MAX_BYTES + 2**20))) as client:
        with pytest.raises(RolloutServerBroken, match="the reply is longer than"):
            await ROUTES[route](client)


@pytest.mark.parametrize("body", [b'{"error":{"message":"bad\\u0000%s"}}', b"bad\x00%s"])
async def test_the_sentence_of_a_refusal_is_clean_and_short(body: bytes) -> None:
    async with answering(always(body % (b"A" * 2**22), 400)) as client:
        with pytest.raises(WeightUpdateRefused) as refused:
            await client.update_weights("/models/a", "1")
        assert len(refused.value.message) <= MAX_MESSAGE and "\x00" not in str(refused.value)
        with pytest.raises(RequestRefused, match="bad") as refused_request:
            await client.generate(IDS, SAMPLING)
        assert len(refused_request.value.message) <= MAX_MESSAGE


@pytest.mark.parametrize(
    ("parts", "reason"), [("dp_size", "data-parallel replicas"), ("pp_size", "pipeline stages")]
)
async def test_a_server_of_several_parts_gets_no_weights_from_a_sender(parts: str, reason: str) -> None:
    async with answering(always({"tp_size": 2, parts: 2})) as client:
        with pytest.raises(TransferFailed, match=reason) as failed:
            async with sending(client, "/models/a", address="127.0.0.1", within=1.0):
                pass
    assert failed.value.always
