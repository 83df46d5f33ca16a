"""One loop over a real SGLang: a gateway on real services in front of it, and every step in Postgres equals SGLang's input and output.

It serves in half precision while versions are published in single precision, as in production: the canary bounds the effect on logprobs.
"""

import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
import torch

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.servers.client import RequestRefused, RolloutServerClient, SamplingParams
from orchestrator.gateway_client import NativeLlm
from tests.contract.rollout_server import running_server
from tests.integration.gateway.rig import Policies, Rig, open_rig
from tests.waiting import eventually
from trainer.model import load_model

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.services,
    pytest.mark.sglang,
]
POLICY_VERSIONS = 2

CANARY = 0.02
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server_url(policies: Policies) -> Iterator[str]:
    with running_server(policies.model, kind="sglang") as server:
        yield server.url


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with open_rig(
        database_url, nats_server.url, server_url, policies, tmp_path, max_new_tokens=300, temperature=0.0
    ) as rig:
        await rig.publish(0)
        rig.start_ingest()
        yield rig


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def logprobs(policies: Policies, version: int, ids: list[int]) -> list[float]:
    """The trainer's logprobs of ids[1:] under one version."""
    model = load_model(policies.versions[version].path, backend=None)
    with torch.no_grad():
        table = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, :-1], -1)
    return [float(table[i, token]) for i, token in enumerate(ids[1:])]


def worst(ours: Any, theirs: Any) -> float:
    return float(max(abs(a - b) for a, b in zip(ours, theirs, strict=True)))


async def test_stored_steps_fold_to_the_requests_that_sglang_received(rig: Rig, policies: Policies) -> None:
    rollout, session = await rig.open()
    history = [user("count the lines of oak.txt")]
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        for turn in range(3):
            reply = await llm.complete(history, max_tokens=20)
            history += [reply.message(), user(f"go on {turn}")]
        await llm.complete([user("something else, oak"), *history[1:]], max_tokens=20)  # a rewritten history
        await llm.complete([user("a side question")], agent="helper", max_tokens=20)
    seal = await rig.seal(rollout)
    steps = await rig.stored(rollout, seal.steps)
    assert rig.proxy.sent == [(step.full[: step.state_len].tolist(), step.action.tolist()) for step in steps]
    assert [step.kind.value for step in steps] == ["root", "continues", "continues", "root", "root"]
    assert seal.marks == () and seal.versions == (0,)
    for step in steps:
        theirs = logprobs(policies, 0, step.full.tolist())[step.state_len - 1 :]
        assert worst(step.logprobs, theirs) <= CANARY


async def test_new_weights_in_the_middle_of_a_generation_leave_spans_whose_logprobs_are_their_versions(
    rig: Rig, policies: Policies, server_url: str
) -> None:
    rollout, session = await rig.open()
    await eventually(lambda: rig.gateway.pool.servers[0].ready)
    async with (
        NativeLlm(rig.gateway.url, session.token) as llm,
        RolloutServerClient(server_url) as server,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(llm.complete, [user("oak")])
        await eventually(server.loads, lambda seen: seen.num_running_reqs != 0, within_s=PATIENCE_S)
        await rig.publish(1)
    (step,) = await rig.stored(rollout, 1)
    assert [version for version, _, _ in step.spans] == [0, 1]
    (_, start, cut), (_, again, end) = step.spans
    assert (start, again, end) == (0, cut, len(step.action)) and len(step.logprobs) == len(step.action)
    whole = rig.proxy.sent[0][0]
    for state, partial in rig.proxy.sent:  # every segment continues with exactly the ids before it
        assert state == whole
        whole = state + partial
    assert step.full.tolist() == whole
    old, new = (logprobs(policies, version, whole)[step.state_len - 1 :] for version in (0, 1))
    assert worst(step.logprobs[:cut], old[:cut]) <= CANARY
    assert worst(step.logprobs[cut:], new[cut:]) <= CANARY
    assert worst(step.logprobs, new) > CANARY, "the versions differ, so the spans say something"
    assert (await rig.seal(rollout)).marks == ()
    (row,) = await rig.rows("SELECT state, version, detail FROM rollout_servers")
    assert (row.state, row.version) == ("ready", 1)
    assert 0 < float(row.detail.removeprefix("canary difference ")) <= CANARY


async def test_a_canary_that_differs_keeps_sglang_closed_until_a_good_version_comes(
    rig: Rig, policies: Policies, tmp_path: Path
) -> None:
    await eventually(lambda: rig.gateway.pool.servers[0].version == 0)
    bad = tmp_path / "bad"
    shutil.copytree(policies.versions[1].path, bad)
    manifest = json.loads((bad / "manifest.json").read_text())
    manifest["canary"]["logprobs"][3] -= 2 * CANARY
    raw = json.dumps(manifest).encode()
    (bad / "manifest.json").write_bytes(raw)
    await rig.publish(1, path=bad, manifest_sha=hashlib.sha256(raw).hexdigest())
    with anyio.fail_after(PATIENCE_S):
        query = (
            "SELECT detail FROM rollout_servers WHERE state = 'failed' AND detail LIKE 'canary of version 1%'"
        )
        await eventually(lambda: rig.rows(query), every_s=0.05)
    assert not rig.gateway.pool.servers[0].ready


async def test_ids_that_the_model_does_not_have_never_reach_sglang(rig: Rig, server_url: str) -> None:
    await eventually(lambda: rig.gateway.pool.servers[0].ready)
    client = rig.gateway.pool.servers[0].client
    before = len(rig.proxy.bodies)
    for ids in ([5, 999_999], [5, -1]):
        with pytest.raises(RequestRefused, match=r"input_ids\[1\] = .* is outside the vocabulary"):
            await client.generate(ids, SamplingParams(max_new_tokens=4))
        with pytest.raises(RequestRefused, match="outside the vocabulary"):
            await client.prompt_logprobs(ids)
    assert len(rig.proxy.bodies) == before
    async with aiohttp.ClientSession(server_url) as http, http.get("/model_info") as alive:
        assert alive.status == 200
