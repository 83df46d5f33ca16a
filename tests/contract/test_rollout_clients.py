"""Clients that send a rollout server impossible numbers, or send nothing, are refused, and others are served as before. A real process of the
embedded server."""

from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests import slow_heads
from tests.contract.answers import PROMPT
from tests.contract.rollout_server import ServerProcess, running_server
from trainer.benchmarks.random_model import write_random_model

pytestmark = [pytest.mark.anyio, pytest.mark.embedded("its own process"), pytest.mark.tier("gateway")]

HUGE = 10**400
HEAD_S = 1.0
GROUP = {"master_address": "127.0.0.1", "group_name": "g", "backend": "gloo", "master_port": 9}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_random_model(tmp_path_factory.mktemp("model"))
    with running_server(model, "--head-timeout", str(HEAD_S)) as server:
        yield server


def sampled(**params: Any) -> dict[str, Any]:
    return {"input_ids": list(PROMPT), "sampling_params": {"max_new_tokens": 2, **params}}


IMPOSSIBLE = [
    ("/generate", sampled(temperature=HUGE)),
    ("/generate", sampled(temperature=1e39)),
    ("/generate", sampled(top_p=HUGE)),
    ("/generate", sampled(min_p=-HUGE)),
    ("/generate", sampled(logit_bias={"5": HUGE})),
    ("/generate", sampled(logit_bias={"5": 1e39})),
    ("/generate", sampled(max_new_tokens=HUGE)),
    ("/generate", sampled(n=HUGE)),
    ("/generate", {**sampled(), "return_logprob": True, "logprob_start_len": HUGE}),
    ("/generate", {**sampled(), "return_logprob": True, "top_logprobs_num": HUGE}),
    ("/generate", {**sampled(), "input_ids": [HUGE]}),
    ("/init_weights_update_group", {**GROUP, "master_port": HUGE, "rank_offset": 1, "world_size": 2}),
    ("/init_weights_update_group", {**GROUP, "rank_offset": 1, "world_size": HUGE}),
    ("/update_weights_from_distributed", {"names": ["a"], "dtypes": ["float32"], "shapes": [[HUGE]]}),
    ("/update_weights_from_distributed", {"names": ["a"], "dtypes": ["float32"], "shapes": [[-1]]}),
]


@pytest.mark.parametrize(("path", "body"), IMPOSSIBLE)
async def test_a_number_that_no_model_can_use_is_status_400(
    server: ServerProcess, path: str, body: dict[str, Any]
) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.post(server.url + path, json=body) as answer:
            assert answer.status == 400, await answer.text()
        async with http.post(
            f"{server.url}/generate", json=sampled(top_k=HUGE, sampling_seed=HUGE)
        ) as answer:
            assert answer.status == 200, await answer.text()


@pytest.mark.parametrize("sent", slow_heads.BEGINNINGS)
async def test_a_head_that_does_not_arrive_ends_its_connection_and_others_are_answered(
    server: ServerProcess, sent: bytes
) -> None:
    async with aiohttp.ClientSession() as http:

        async def answered() -> bool:
            async with http.get(f"{server.url}/model_info") as answer:
                return answer.status == 200

        await slow_heads.until_closed(server.url, sent, answered)
