"""From a rollout server through gateway, bus and data pool: every token of a step has the experts by which it was computed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway_client import NativeLlm, SessionBudget
from orchestrator.pool.steps import trajectories
from orchestrator.trajectory.routes import NOT_RECORDED
from tests.integration.gateway.rig import Policies, Rig, make_policies, open_rig
from tests.unit.gateway.driver import user
from tests.unit.serving.test_routes import expected, serving
from tests.unit.trainer.forests import qwen3_moe, seeded
from tests.waiting import eventually
from trainer.checkpoint import TrainerState, save_checkpoint
from trainer.policy.init import make_policy
from trainer.tree.forward import attach_tree_attention

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
REPLAY = {"trainer": {"routing_replay": True}}


def mixture(vocabulary: int, version: int) -> Any:
    """A tiny Qwen3-MoE with the demo policy's vocabulary: two layers, two of four experts per token."""

    policy = seeded(lambda: qwen3_moe(vocab_size=vocabulary, max_position_embeddings=2048), seed=version)
    attach_tree_attention(policy)
    return policy


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    """Two versions of a mixture that uses the demo policy's chat format."""
    folder = tmp_path_factory.mktemp("policies")
    speaks = make_policy(folder / "speaks", seed=0)
    vocabulary = json.loads((speaks / "config.json").read_text())["vocab_size"]
    versions = []
    for version in range(2):
        policy = mixture(vocabulary, version)
        state = TrainerState(version=version, batch_no=None, train_steps=0)
        optimizer = torch.optim.AdamW(policy.parameters())
        ids = list(range(260, 300))
        versions.append(
            save_checkpoint(
                folder / "checkpoints", policy, optimizer, state, tokenizer=speaks, canary_ids=ids
            )
        )
    return Policies(versions[0].path, tuple(versions))


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with (
        serving(policies.model) as url,
        open_rig(
            database_url, nats_server.url, url, policies, tmp_path, sections=REPLAY, max_new_tokens=6
        ) as rig,
    ):
        await rig.publish(0)
        yield rig


async def serves(rig: Rig, version: int) -> None:
    await eventually(lambda: rig.gateway.pool.servers[0].version == version, within_s=20)


async def test_every_token_has_the_experts_of_the_weights_that_went_on_with_it(rig: Rig) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(budget=SessionBudget(max_turns=20, max_context=2048))
    talk = [user("what is two and two")]
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        for turn in range(4):
            if turn == 2:
                await rig.publish(1)
            await serves(rig, turn // 2)
            reply = await llm.complete(talk, [])
            talk = [*talk, reply.message(), user(f"and then {turn}")]
        forged = {"role": "assistant", "content": "five"}
        # Continues with text that the policy never sampled.
        await llm.complete([talk[0], forged, user("is it")], [])
    await rig.seal(rollout)
    plain = await rig.stored(rollout, 5)
    async with rig.engine.connect() as connection:
        found = await trajectories(connection, rig.run_id, [(rollout, 1)], routes=True)
    steps = found[rollout]
    made_by = [{version for version, _, _ in step.spans} for step in steps]
    assert made_by == [{0}, {0}, {1}, {1}, {1}] and steps[4].kind == "rewrites"
    references = [
        AutoModelForCausalLM.from_pretrained(v.path, dtype=torch.float32) for v in rig.policies.versions
    ]
    for step, other in zip(steps, plain, strict=True):
        assert step.full.tolist() == other.full.tolist()
        routes = step.tokens.full_routes
        assert routes is not None and (routes[:-1] != NOT_RECORDED).all()
        by = references[step.spans[0].version]
        assert (routes[:-1] == expected(by, step.full.tolist())).all(), f"step {step.idx}"
    rows = await rig.rows("SELECT idx, start, length(routes) / 4 AS n FROM step_routes ORDER BY idx")
    lengths = [len(step.full) for step in steps]
    starts = [row.start for row in rows]
    assert starts == [0, lengths[0] - 1, 0, lengths[2] - 1, steps[4].keep_len]
    assert [row.start + row.n for row in rows] == [length - 1 for length in lengths]


async def test_a_gateway_of_a_dense_policy_refuses_to_record_routes(
    database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    dense = make_policies(tmp_path / "dense", 1)
    with pytest.raises(BaseExceptionGroup) as refused:
        async with open_rig(
            database_url, nats_server.url, "http://127.0.0.1:9", dense, tmp_path, sections=REPLAY
        ):
            pass
    assert refused.group_contains(
        ConfigurationError, match=r"routing_replay is true, but the policy in .* no experts"
    )
