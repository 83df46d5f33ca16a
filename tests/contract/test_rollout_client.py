"""The client of rollout servers reads recorded SGLang replies, and gives every failure its own error."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from orchestrator.contracts.errors import InfraFailure
from orchestrator.contracts.processes import PauseMode
from orchestrator.gateway.servers.client import (
    RequestRefused,
    RolloutServerBroken,
    RolloutServerClient,
    RolloutServerUnreachable,
    SamplingParams,
    WeightSpan,
    WeightUpdateRefused,
)
from orchestrator.gateway.servers.client.generation import Requested, parse_generation
from orchestrator.gateway.servers.client.replies import error_message
from orchestrator.trajectory.routes import Experts
from tests.contract.answering import always, answering
from tests.contract.rollout_server import golden

pytestmark = pytest.mark.anyio

SAMPLING = SamplingParams(max_new_tokens=8)
PROMPT: list[int] = golden("generate_input_ids_logprob")[0]["body"]["input_ids"]
REQUESTED = Requested(prompt=len(PROMPT), limit=8)


def test_a_recorded_completion_is_read_completely() -> None:
    recorded = golden("generate_input_ids_logprob")[1]["body"]
    got = parse_generation(msgspec.json.encode(recorded), REQUESTED)
    assert list(got.output_ids) == recorded["output_ids"]
    assert got.logprobs[0] == recorded["meta_info"]["output_token_logprobs"][0][0]
    assert got.spans == (WeightSpan(version="default", start=0, end=8),)
    assert (got.finish.kind, got.finish.matched) == ("length", None)
    assert (got.prompt_tokens, got.completion_tokens, got.cached_tokens) == (7, 8, 0)
    assert got.timings.queue_s == recorded["meta_info"]["queue_time"]


def test_a_recorded_abort_is_a_valid_partial_completion() -> None:
    aborted = msgspec.json.encode(golden("midflight_abort")[1]["body"])
    got = parse_generation(aborted, Requested(prompt=8, limit=200))
    assert (got.finish.kind, got.finish.message, got.completion_tokens) == ("abort", "Aborted", 15)
    assert got.spans == (WeightSpan(version="step-2-retract", start=0, end=15),)


@pytest.mark.parametrize("name", ["generate_err_bad_param", "generate_err_empty", "generate_err_too_long"])
def test_both_recorded_shapes_of_an_error_give_its_sentence(name: str) -> None:
    error = golden(name)[1]["body"]["error"]
    sentence = error if isinstance(error, str) else error["message"]
    assert error_message(web.json_response({"error": error}).body) == sentence  # type: ignore[arg-type]


def _break(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    reply = golden("generate_input_ids_logprob")[1]["body"]
    change(reply)
    return reply  # type: ignore[no-any-return]


def _score(reply: dict[str, Any], logprob: float | None) -> None:
    reply["meta_info"]["output_token_logprobs"][3][0] = logprob


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda reply: reply["output_ids"].pop(), "ids of their logprobs differ"),
        (lambda reply: reply["meta_info"].update(completion_tokens=7), "completion_tokens = 7"),
        (lambda reply: reply["meta_info"]["weight_versions"].clear(), "they end after 0 of 8 tokens"),
        (
            lambda reply: reply["meta_info"]["weight_versions"][0].update(start=1),
            "do not tile the action: one starts at 1 after 0 tokens",
        ),
        (
            lambda reply: reply["meta_info"].update(finish_reason={"type": "tired"}),
            "Invalid enum value 'tired'",
        ),
        (lambda reply: reply.pop("meta_info"), "missing required field `meta_info`"),
        (lambda reply: _score(reply, 0.5), "Expected `float` <= 0.0001"),
        (lambda reply: _score(reply, float("nan")), "not JSON"),
        (lambda reply: _score(reply, None), "Expected `float`, got `null`"),
    ],
)
async def test_a_reply_that_contradicts_itself_is_the_servers_fault(
    change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    async with answering(always(_break(change))) as client:
        with pytest.raises(RolloutServerBroken, match=reason):
            await client.generate(PROMPT, SAMPLING)


async def test_statuses_decide_whose_fault_it_is() -> None:
    recorded = golden("duplicate_rid")[1]
    async with answering(always(recorded["body"], recorded["status"])) as client:
        with pytest.raises(RequestRefused, match="Duplicate request ID detected: dup_rid") as refused:
            await client.generate(PROMPT, SAMPLING)
        assert refused.value.status == 400
    async with answering(always("overloaded", 503)) as client:
        with pytest.raises(RolloutServerBroken, match="status 503: overloaded"):
            await client.generate(PROMPT, SAMPLING)
        assert not await client.ping()
    async with answering(always("<html>")) as client:
        with pytest.raises(RolloutServerBroken, match="not JSON"):
            await client.model_info()
    recorded = golden("update_weights_from_disk_missing")[1]
    async with answering(always(recorded["body"], recorded["status"])) as client:
        with pytest.raises(WeightUpdateRefused, match="Failed to get weights iterator"):
            await client.update_weights("/nowhere", "v1")


async def test_a_server_that_dies_is_absent_or_silent_is_unreachable(free_tcp_port: int) -> None:
    async def drop(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async with answering(drop) as client:
        with pytest.raises(RolloutServerUnreachable):
            await client.generate(PROMPT, SAMPLING)
    async with answering(never) as client:
        with pytest.raises(RolloutServerUnreachable, match=r"no answer within 0\.05 s"):
            await client.generate(PROMPT, SAMPLING, timeout=0.05)
    async with RolloutServerClient(f"http://127.0.0.1:{free_tcp_port}") as client:
        with pytest.raises(RolloutServerUnreachable) as failure:
            await client.model_info()
        assert isinstance(failure.value, InfraFailure)
        assert not await client.ping()


async def test_the_recorded_bodies_are_what_the_client_sends() -> None:
    """Each call of the client against the recorded request of the same route: same keys, or fewer."""
    sent: dict[str, Any] = {}

    async def remember(request: web.Request) -> web.StreamResponse:
        sent[request.path] = await request.json() if request.can_read_body else None
        if request.path == "/generate":
            return web.json_response(golden("generate_input_ids_logprob")[1]["body"])
        return web.json_response({"success": True, "loads": [{}]})

    async with answering(remember) as client:
        await client.generate(PROMPT, SAMPLING, rid="traj0-turn0")
        await client.pause(PauseMode.RETRACT)
        await client.continue_()
        await client.update_weights("/models/model1", "step-1")
        await client.abort("midflight_abortrid")
    for name in ("pause_generation_retract", "continue_generation_retract", "update_weights_from_disk"):
        request = golden(name)[0]
        assert sent[request["path"]] == request["body"]
    assert sent["/abort_request"] == golden("abort_request_abort_rid")[0]["body"]
    recorded = golden("generate_input_ids_logprob")[0]["body"]
    assert set(sent["/generate"]) <= set(recorded)
    assert set(sent["/generate"]["sampling_params"]) <= set(recorded["sampling_params"])


EXPERTS = Experts(layers=2, top_k=2, count=8)


def _routed(rows: int, encode: Callable[[Any], Any] = lambda flat: flat.astype("<i4").tobytes()) -> Any:
    """The recorded completion (7 + 8 tokens) with `routed_experts` as SGLang's documentation describes it: base64 of int32
    [tokens, layers, top_k], the experts of a layer in order of their score. No recording contains the key: the recorded model
    is dense."""
    flat = np.tile([[5, 2], [0, 7]], (rows, 1, 1)) + np.arange(rows)[:, None, None] % 2 * np.array([1, -2])
    reply = golden("generate_input_ids_logprob")[1]["body"]
    reply["meta_info"]["routed_experts"] = base64.b64encode(encode(flat % 8)).decode()
    return reply


async def test_routes_are_requested_from_a_position_on_and_read_in_ascending_order() -> None:
    bodies: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return web.json_response(_routed(14 - bodies[-1].get("routed_experts_start_len", 0)))

    async with answering(answer) as client:
        assert (await client.generate(PROMPT, SAMPLING)).routes is None
        client._experts = EXPERTS
        whole = await client.generate(PROMPT, SAMPLING)
        part = await client.generate(PROMPT, SAMPLING, routes_from=6)
    wanted = [(one.get("return_routed_experts"), one.get("routed_experts_start_len")) for one in bodies]
    assert wanted == [(None, None), (True, 0), (True, 6)]
    assert whole.routes is not None and part.routes is not None
    assert whole.routes.shape == (14, 2, 2) and whole.routes.dtype == np.int16 and len(part.routes) == 8
    assert whole.routes[:2].tolist() == [[[2, 5], [0, 7]], [[0, 6], [1, 5]]]


def test_a_server_may_leave_out_routes() -> None:
    recorded = msgspec.json.encode(golden("generate_input_ids_logprob")[1]["body"])
    assert parse_generation(recorded, replace(REQUESTED, experts=EXPERTS)).routes is None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (_routed(13), "routes of 13 tokens came, 14 were requested"),
        (
            _routed(14, lambda flat: flat.astype("<i4").tobytes()[:-4]),
            "55 expert ids do not hold whole rows of 2 layers and 2",
        ),
        (
            _routed(14, lambda flat: flat.astype("<i4").tobytes()[:-1]),
            "routes of 223 bytes do not hold int32",
        ),
        (_routed(14, lambda flat: (flat + 1).astype("<i4").tobytes()), "8 is not one of 8 experts"),
    ],
)
def test_routes_that_do_not_fit_the_tokens_or_the_model_are_the_servers_fault(
    reply: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_generation(msgspec.json.encode(reply), replace(REQUESTED, experts=EXPERTS))
