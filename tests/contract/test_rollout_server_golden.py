"""The embedded rollout server answers as a recorded SGLang 0.5.23 server did: statuses, content types, shapes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from tests.contract.rollout_server import GOLDEN, ServerProcess, golden, shape

pytestmark = pytest.mark.anyio

LONG = {"max_new_tokens": 6000, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session
        for path in ("/abort_request", "/continue_generation"):
            async with session.post(path, json={"abort_all": True}):
                pass


async def send(http: aiohttp.ClientSession, request: dict[str, Any]) -> dict[str, Any]:
    """Send a recorded request; the answer in the recordings' form."""
    async with http.request(request["method"], request["path"], json=request["body"]) as response:
        text = await response.text()
        body = json.loads(text) if response.content_type == "application/json" else text
        kind = response.headers.get("Content-Type", "")
        return {"status": response.status, "content_type": kind, "body": body}


def assert_same_shape(ours: Any, theirs: Any) -> None:
    """Equal shapes, except values that may be null by the state of the cache, the times of a one-token reply, and the digests of weights, which
    SGLang does not tell."""
    mine, other = shape(ours), shape(theirs)
    for one in (mine, other):
        for reply in one if isinstance(one, list) else [one]:
            meta = reply.get("meta_info", {})
            for key in ("cached_tokens_details", "decode_throughput", "weights_digest"):
                meta.pop(key, None)
            for span in meta.get("weight_versions", []):
                span.pop("weights_digest", None)
    assert mine == other


@pytest.mark.parametrize(
    "name",
    [
        "generate_input_ids_logprob",
        "generate_batch",
        "generate_n2",
        "generate_prefix_cached",
        "generate_prompt_logprobs_top2",
        "generate_return_prompt_token_ids",
        "generate_sampling_mask",
        "generate_stop_token",
        "v1_tokenize",
        "v1_models",
    ],
)
async def test_a_recorded_request_gets_an_answer_of_the_recorded_shape(
    http: aiohttp.ClientSession, name: str
) -> None:
    request, recorded = golden(name)
    answer = await send(http, request)
    assert (answer["status"], answer["content_type"]) == (recorded["status"], recorded["content_type"])
    if name in ("generate_n2", "generate_return_prompt_token_ids"):
        request["body"]["rid"] = None
    assert_same_shape(answer["body"], recorded["body"])


@pytest.mark.parametrize(
    "name",
    [
        "generate_err_bad_param",
        "generate_err_empty",
        "generate_err_too_long",
        "abort_unknown_rid",
        "abort_request_abort_all",
        "abort_request_abort_rid",
        "pause_generation_abort",
        "flush_cache_while_paused_abort",
        "continue_generation_abort",
        "pause_generation_retract",
        "flush_cache_while_paused_retract",
        "continue_generation_retract",
        "pause_generation_in_place",
        "continue_generation_in_place",
        "flush_cache",
    ],
)
async def test_a_recorded_request_gets_exactly_the_recorded_answer(
    http: aiohttp.ClientSession, name: str
) -> None:
    request, recorded = golden(name)
    answer = await send(http, request)
    assert (answer["status"], answer["body"]) == (recorded["status"], recorded["body"])


@pytest.mark.embedded("they end a SGLang server")
async def test_ids_outside_the_vocabulary_get_400_and_the_server_lives_on(
    http: aiohttp.ClientSession,
) -> None:
    request, recorded = golden("generate_err_oov")
    assert recorded["status"] == -1  # a real SGLang server died from it
    answer = await send(http, request)
    assert answer["status"] == 400
    assert answer["body"]["error"]["message"] == "input_ids[1] = 999999 is outside the vocabulary (0 … 732)."
    request["body"]["input_ids"] = [5, -1]
    assert (await send(http, request))["status"] == 400
    assert (await send(http, golden("generate_input_ids_logprob")[0]))["status"] == 200


async def test_streamed_chunks_are_cumulative_and_shaped_as_recorded(http: aiohttp.ClientSession) -> None:
    request, recorded = golden("generate_stream")
    answer = await send(http, request)
    assert answer["content_type"] == recorded["content_type"]

    def chunks(text: str) -> list[dict[str, Any]]:
        parts = text.split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""]
        return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]

    ours, theirs = chunks(answer["body"]), chunks(recorded["body"])
    assert_same_shape(ours[-1], theirs[-1])
    assert [one["meta_info"]["finish_reason"] for one in ours[:-1]] == [None] * (len(ours) - 1)
    assert not any("weight_versions" in one["meta_info"] for one in ours[:-1])
    for one in ours:
        assert ours[-1]["output_ids"][: len(one["output_ids"])] == one["output_ids"]
        assert ours[-1]["text"].startswith(one["text"])
    assert len(ours[-1]["output_ids"]) == 4


async def test_a_rid_that_is_live_is_refused_as_recorded(http: aiohttp.ClientSession) -> None:
    request, recorded = golden("duplicate_rid")
    async with anyio.create_task_group() as group:
        body = {"rid": request["body"]["rid"], "input_ids": [1, 100], "sampling_params": LONG}
        group.start_soon(send, http, {"method": "POST", "path": "/generate", "body": body})
        await running(http, 1)
        answer = await send(http, request)
        await send(http, golden("abort_request_abort_all")[0])
    assert (answer["status"], answer["body"]) == (recorded["status"], recorded["body"])
    assert (await send(http, request))["status"] == 200  # the server is free again


async def running(http: aiohttp.ClientSession, count: int) -> None:
    """Wait until `count` requests run."""
    with anyio.fail_after(10):
        while True:
            async with http.get("/v1/loads") as response:
                if (await response.json())["loads"][0]["num_running_reqs"] == count:
                    return


async def test_a_cache_flush_fails_as_recorded_while_requests_are_paused_in_place(
    http: aiohttp.ClientSession,
) -> None:
    request, recorded = golden("flush_cache_while_paused_in_place")
    async with anyio.create_task_group() as group:
        body = {"input_ids": [1, 100], "sampling_params": LONG}
        group.start_soon(send, http, {"method": "POST", "path": "/generate", "body": body})
        await running(http, 1)
        await send(http, golden("pause_generation_in_place")[0])
        answer = await send(http, request)
        update = golden("update_weights_from_disk")[0]
        refused = await send(http, update)
        await send(http, golden("abort_request_abort_all")[0])
        # Only then SGLang ends the requests paused in place, and itself after 300 s.
        await send(http, golden("continue_generation_in_place")[0])
    assert (answer["status"], answer["body"]) == (recorded["status"], recorded["body"])
    assert (refused["status"], refused["body"]["success"]) == (400, False)


async def test_health_generates_and_is_503_while_paused_but_ping_and_model_info_answer(
    http: aiohttp.ClientSession,
) -> None:
    request, recorded = golden("health")
    assert (await send(http, request))["status"] == recorded["status"] == 200
    await send(http, golden("pause_generation_in_place")[0])
    for path, status in (("/ping", 200), ("/model_info", 200), ("/ready", 503)):
        assert (await send(http, {"method": "GET", "path": path, "body": None}))["status"] == status
    request, recorded = golden("health_while_paused_in_place")
    assert (await send(http, request))["status"] == recorded["status"] == 503
    assert (await send(http, {"method": "GET", "path": "/model_info", "body": None}))["status"] == 200
    await send(http, golden("continue_generation_in_place")[0])
    assert (await send(http, golden("health")[0]))["status"] == 200
    assert (await send(http, {"method": "GET", "path": "/ready", "body": None}))["status"] == 200


async def test_weight_updates_answer_as_recorded_and_model_info_shows_them(
    http: aiohttp.ClientSession, models: Path
) -> None:
    request, recorded = golden("update_weights_from_disk")
    request["body"]["model_path"] = str(models / "model1")
    answer = await send(http, request)
    assert (answer["status"], answer["body"]) == (recorded["status"], recorded["body"])

    request, recorded = golden("update_weights_from_disk_missing")
    answer = await send(http, request)
    assert answer["status"] == recorded["status"] == 400
    assert shape(answer["body"]) == shape(recorded["body"])
    assert answer["body"]["success"] is False

    request, recorded = golden("model_info_after_update")
    info = (await send(http, request))["body"]
    assert info["weight_version"] == recorded["body"]["weight_version"]
    assert info["model_path"] == str(models / "model1")

    request, recorded = golden("update_weight_version")
    answer = await send(http, request)
    assert (answer["status"], answer["body"]) == (recorded["status"], recorded["body"])


@pytest.mark.parametrize("name", ["model_info", "get_model_info", "server_info", "v1_loads"])
async def test_descriptions_have_only_recorded_keys_with_recorded_types(
    http: aiohttp.ClientSession, name: str
) -> None:
    request, recorded = golden(name)
    answer = await send(http, request)
    ours, theirs = answer["body"], recorded["body"]
    assert answer["status"] == 200
    if name == "v1_loads":
        assert set(ours) == set(theirs)
        ours, theirs = ours["loads"][0], theirs["loads"][0]
        assert set(ours["queues"]) <= set(theirs["queues"])
    elif name.endswith("model_info"):
        ours = {key: value for key, value in ours.items() if key != "weights_digest"}
        assert set(theirs) - set(ours) <= {"embedding"}
    else:
        ours = {key: value for key, value in ours.items() if key not in ("engine", "uptime_s")}
        assert set(ours["internal_states"][0]) <= set(theirs["internal_states"][0])
    assert set(ours) <= set(theirs)
    for key, value in ours.items():
        if not isinstance(value, dict | list) and value is not None and theirs[key] is not None:
            assert shape(value) == shape(theirs[key]), key


async def test_metrics_have_the_recorded_names(http: aiohttp.ClientSession) -> None:
    request, recorded = golden("metrics")
    ours = (await send(http, request))["body"]

    def names(text: str) -> set[str]:
        return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}

    assert names(recorded["body"]) <= names(ours)
    wanted = "num_running_reqs num_queue_reqs token_usage cache_hit_rate gen_throughput time_to_first_token_seconds"
    assert {f"sglang:{name}" for name in wanted.split()} <= names(ours)


def test_every_recording_is_used() -> None:
    """An unused recording would only look like coverage."""
    here = Path(__file__).parent
    tests = "".join(path.read_text() for path in here.glob("test_rollout_*.py"))
    assert [path.stem for path in GOLDEN.glob("*.json") if f'"{path.stem}"' not in tests] == []
