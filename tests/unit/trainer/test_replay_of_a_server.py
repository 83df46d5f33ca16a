"""The trainer recomputes a rollout server's logprobs more faithfully when it uses the server's experts again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.routes import Experts
from tests.unit.trainer.forests import qwen3_moe, saved
from trainer.model import load_model as load_policy
from trainer.model_directory import inspect_directory, load_tokenizer
from trainer.samples import Sample
from trainer.serving.model import load_model
from trainer.serving.protocol import GenerateRequest, Sampling
from trainer.serving.scheduler import Scheduler
from trainer.serving.sequence import Sequence
from trainer.tree.replay import attach_replay
from trainer.update import UpdateSettings, recompute_logprobs, train_step

VOCAB = 300


def many_experts() -> Any:
    """Near ties are common among 32 experts."""
    return qwen3_moe(
        num_hidden_layers=3,
        num_attention_heads=2,
        num_experts=32,
        num_experts_per_tok=4,
        vocab_size=VOCAB,
        max_position_embeddings=1024,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(many_experts, tmp_path_factory.mktemp("many_experts"), VOCAB)


@pytest.fixture(scope="module")
def generated(folder: Path) -> list[Sample]:
    """Four completions of one prompt, as the server made them in float32, with their routes."""
    directory = inspect_directory(folder)
    experts = Experts.of(directory.config)
    assert experts is not None
    scheduler = Scheduler(
        load_model(directory),
        load_tokenizer(directory)[0],
        version="0",
        context_length=512,
        max_total_tokens=4096,
        max_running=4,
        seed=0,
    )
    prompt = [(7 * i) % 290 + 3 for i in range(24)]
    requests = [
        Sequence(
            request=GenerateRequest(
                rid=str(seed),
                ids=tuple(prompt),
                sampling=Sampling(max_new_tokens=60, ignore_eos=True),
                return_routes=True,
            ),
            limit=60,
            seed=seed,
            stop_ids=frozenset(),
        )
        for seed in range(4)
    ]
    with torch.inference_mode():
        for one in requests:
            scheduler.submit(one)
        while scheduler.has_work:
            scheduler.step()
    samples = []
    for one in requests:
        sample = Sample.of(prompt, one.ids[24:], behavior_logprobs=one.logprobs, advantage=1.0)
        assert one.routes is not None
        routes = experts.shaped(one.routes.numpy().astype(np.int32).reshape(-1))
        last = np.full((1, *routes.shape[1:]), -1, np.int16)  # sampled, never fed
        samples.append(replace(sample, tokens=Branch(own=sample.ids, routes=np.concatenate([routes, last]))))
    return samples


def apart(policy: Any, samples: list[Sample]) -> np.ndarray[Any, Any]:
    """|trainer logprob − behavior logprob| of every action token."""
    ours = recompute_logprobs(policy, samples, UpdateSettings())
    return np.concatenate([np.abs(o - s.behavior_logprobs) for o, s in zip(ours, samples, strict=True)])


def test_a_trainer_in_bfloat16_is_nearer_to_its_server_with_the_servers_experts(
    folder: Path, generated: list[Sample]
) -> None:
    policy = load_policy(folder, dtype=torch.bfloat16, backend="dense")
    attach_replay(policy)
    live = apart(policy, [replace(sample, tokens=Branch(own=sample.ids)) for sample in generated])
    replayed = apart(policy, generated)
    assert len(live) == 240
    assert replayed.mean() < 0.5 * live.mean() and replayed.max() < 0.2 * live.max()


def test_in_the_servers_own_precision_both_agree_with_it_and_everything_is_replayed(
    folder: Path, generated: list[Sample]
) -> None:
    policy = load_policy(folder)
    attach_replay(policy)
    live = [replace(sample, tokens=Branch(own=sample.ids)) for sample in generated]
    assert max(apart(policy, generated).max(), apart(policy, live).max()) < 1e-4
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    metrics = train_step(policy, optimizer, generated, UpdateSettings(), trainer_version=0)
    assert metrics.route_conflicts == 0 and metrics.merge_ratio > 1.2  # the prompt is cached, with its routes
    assert metrics.replayed_share == 1 - 4 / metrics.naive_tokens  # all but the last token of each
