"""The server returns the experts of every token: those that transformers' own routers choose, for every path of the keys."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp.test_utils import TestServer
from tokenizers import Tokenizer

from orchestrator.gateway.servers.client import RequestRefused, RolloutServerClient, SamplingParams
from orchestrator.trajectory.routes import Experts, Routes
from tests.unit.trainer.forests import minimax_m2, qwen3_moe, saved
from trainer.model_directory import inspect_directory, load_tokenizer
from trainer.serving.app import build_app
from trainer.serving.model import Model, load_model
from trainer.serving.protocol import GenerateRequest, Limits, Refusal, Sampling, parse_generate
from trainer.serving.scheduler import Scheduler
from trainer.serving.sequence import Sequence
from trainer.serving.service import Service
from trainer.serving.settings import parse_arguments
from trainer.serving.state import Described
from trainer.tree.routing import routers_by_layer

pytestmark = pytest.mark.anyio
BUILD = {"qwen3_moe": qwen3_moe, "minimax_m2": minimax_m2}
EXPERTS = Experts(layers=2, top_k=2, count=4)
VOCAB = 300


@pytest.fixture(scope="module", params=BUILD)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, Tokenizer, Any]:
    """The server's model, its tokenizer, and transformers' model of the same weights."""
    from transformers import AutoModelForCausalLM

    folder = saved(BUILD[request.param], tmp_path_factory.mktemp(request.param), VOCAB)
    directory = inspect_directory(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return load_model(directory), load_tokenizer(directory)[0], reference


def expected(reference: Any, ids: list[int]) -> Routes:
    """Of all ids but the last: the routers' choices in one plain pass."""
    chosen: dict[int, torch.Tensor] = {}
    hooks = [
        router.register_forward_hook(lambda _, __, out, layer=layer: chosen.update({layer: out[2]}))
        for layer, router in routers_by_layer(reference).items()
    ]
    with torch.no_grad():
        reference(input_ids=torch.tensor(ids[:-1])[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack([chosen[0], chosen[1]], 1).sort(-1).values.numpy().astype(np.int16)


def sequence(prompt: list[int], new: int, rid: str = "a", **more: Any) -> Sequence:
    sampling = Sampling(max_new_tokens=new, ignore_eos=True)
    request = GenerateRequest(rid=rid, ids=tuple(prompt), sampling=sampling, return_routes=True, **more)
    return Sequence(request=request, limit=new, seed=1, stop_ids=frozenset())


def routes_of(one: Sequence) -> Routes:
    assert one.routes is not None
    return np.sort(one.routes.numpy(), -1)


def scheduler(served: tuple[Model, Tokenizer, Any], **limits: int) -> Scheduler:
    values = {"context_length": 512, "max_total_tokens": 65536, "max_running": 8, "seed": 0, **limits}
    return Scheduler(served[0], served[1], version="v0", **values)


def run(one: Scheduler, *sequences: Sequence) -> None:
    with torch.inference_mode():
        for each in sequences:
            one.submit(each)
        while one.has_work:
            one.step()


PROMPT = [(5 * i) % 290 + 3 for i in range(70)]


def test_routes_are_those_of_transformers_also_for_cached_prefixes_and_after_retraction(
    served: tuple[Model, Tokenizer, Any],
) -> None:
    roomy = scheduler(served)
    first = sequence(PROMPT, 9)
    run(roomy, first)
    assert (
        np.array_equal(routes_of(first), expected(served[2], first.ids))
        and len(routes_of(first)) == 70 + 9 - 1
    )
    cached = sequence([*PROMPT[:50], 7, 8, 9], 5, "b", routes_start=49)
    whole = sequence([*PROMPT[:50], 7, 8, 9], 5, "c")
    run(roomy, cached, whole)
    assert cached.cached_tokens == 50
    assert np.array_equal(routes_of(whole), expected(served[2], whole.ids))
    assert np.array_equal(routes_of(cached), routes_of(whole)[49:])
    tight = scheduler(served, max_total_tokens=560, context_length=300)
    many = [sequence([k, *PROMPT], 210, str(k)) for k in (3, 4)]
    run(tight, *many)
    assert tight.counters.retracted > 0
    for one in many:
        assert np.array_equal(routes_of(one), expected(served[2], one.ids))


def test_an_aborted_completion_has_the_routes_of_what_was_fed_and_one_that_waits_has_none(
    served: tuple[Model, Tokenizer, Any],
) -> None:
    one = scheduler(served, max_running=1)
    running, waiting = sequence(PROMPT, 100), sequence(PROMPT[::-1], 100, "b")
    with torch.inference_mode():
        for each in (running, waiting):
            one.submit(each)
        for _ in range(4):
            one.step()
        one.abort(lambda _: True)
    assert waiting.routes is None and running.completion_tokens == 4
    assert np.array_equal(routes_of(running), expected(served[2], running.ids))


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    directory = inspect_directory(folder)
    tokenizer, eos = load_tokenizer(directory)
    service = Service(
        load_model(directory),
        tokenizer,
        eos,
        model_path=str(folder),
        version="1",
        context_length=512,
        max_total_tokens=4096,
        max_running=4,
        seed=0,
    )
    service.start()
    settings = parse_arguments(["--model-path", str(folder)])
    described = Described(settings, directory.config, 0.0)
    try:
        async with TestServer(build_app(service, described)) as server:
            yield str(server.make_url("/")).rstrip("/")
    finally:
        service.stop()


async def test_the_client_asks_for_routes_and_reads_them(tmp_path: Path) -> None:
    folder = saved(qwen3_moe, tmp_path, VOCAB)
    assert Experts.of(inspect_directory(folder).config) == EXPERTS
    sampling = SamplingParams(max_new_tokens=6, ignore_eos=True, seed=3)
    async with serving(folder) as url:
        async with RolloutServerClient(url, experts=EXPERTS) as client:
            whole = await client.generate(PROMPT, sampling)
            part = await client.generate(PROMPT, sampling, routes_from=69)
        async with RolloutServerClient(url) as client:
            plain = await client.generate(PROMPT, sampling)
            prompt = [1, 2, 3]
            with pytest.raises(RequestRefused, match=r"must be in \[0, 3\], the tokens of the prompt, got 4"):
                await client._call(
                    "POST", "/generate", {"input_ids": prompt, "routed_experts_start_len": 4}, 5.0
                )
    assert whole.output_ids == part.output_ids == plain.output_ids and plain.routes is None
    assert whole.routes is not None and whole.routes.shape == (75, 2, 2) and whole.routes.dtype == np.int16
    assert part.routes is not None and np.array_equal(part.routes, whole.routes[69:])


def test_a_dense_model_has_no_routes_to_return() -> None:
    body = {"input_ids": [1, 2], "return_routed_experts": True}
    with pytest.raises(Refusal, match="return_routed_experts: the model of this server has no experts"):
        parse_generate(body, Limits(10, 50), lambda text: [])
    request = parse_generate(
        body | {"routed_experts_start_len": 2}, Limits(10, 50, experts=True), lambda text: []
    )
    assert (request.requests[0].return_routes, request.requests[0].routes_start) == (True, 2)


def test_the_encoding_is_base64_of_little_endian_int32() -> None:
    from trainer.serving.replies import _routed_experts

    one = sequence([1, 2], 1)
    assert _routed_experts(one) is None
    one.routes = torch.tensor([[[1, 3], [0, 2]]], dtype=torch.int16)
    encoded = _routed_experts(one)
    assert encoded is not None
    assert np.frombuffer(base64.b64decode(encoded), "<i4").tolist() == [1, 3, 0, 2]
