"""Passes in bfloat16 over weights in float32."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.settings.trainer import TrainerSection
from tests.unit.trainer.forests import MODELS, everything, group_of_rollouts, seeded
from trainer.activation_checkpointing import checkpoint_activations
from trainer.batch import BatchPart
from trainer.benchmarks.random_model import write_random_model
from trainer.learner import Learner, save_first
from trainer.mixed_precision import compute_in, computing
from trainer.tree.execute import backward, score
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget
from trainer.update import OptimizerSettings, UpdateSettings, make_optimizer, train_step

Gradients = dict[str, torch.Tensor]
WHOLE, SMALL = PassBudget(1 << 20), PassBudget(20)


def model_of(name: str, dtype: torch.dtype = torch.float32, computed: torch.dtype | None = None) -> Any:
    model = seeded(MODELS[name], dtype=dtype).train()
    attach_tree_attention(model)
    if computed is not None:
        compute_in(model, computed)
    return model


def gradients(model: nn.Module, budget: PassBudget = WHOLE) -> Gradients:
    backward(model, pack_samples(everything(), budget), lambda rows, logp: -logp.sum())
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def distance(ours: Gradients, theirs: Gradients) -> float:
    """‖ours − theirs‖₂ ÷ ‖theirs‖₂, all as one vector."""
    assert ours.keys() == theirs.keys()
    apart = sum(float((ours[name].double() - theirs[name].double()).pow(2).sum()) for name in theirs)
    return math.sqrt(apart / sum(float(one.double().pow(2).sum()) for one in theirs.values()))


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_gradients_are_those_of_a_bfloat16_model_kept_in_float32(name: str) -> None:
    ours = gradients(model_of(name, computed=torch.bfloat16))
    assert {one.dtype for one in ours.values()} == {torch.float32}
    loaded = model_of(name, torch.bfloat16)
    loaded.model.rotary_emb = model_of(name).model.rotary_emb  # in float32, as loading leaves it
    rounded = gradients(loaded)
    assert all(torch.equal(ours[key], rounded[key].float()) for key in rounded)
    exact = gradients(model_of(name))
    assert 1e-4 < distance(ours, exact) < 5e-2


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_gradients_of_many_passes_add_up_in_float32(name: str) -> None:
    exact = gradients(model_of(name))
    one, many = (gradients(model_of(name, computed=torch.bfloat16), budget) for budget in (WHOLE, SMALL))
    assert distance(many, exact) < 1.2 * distance(one, exact)


def test_activation_checkpointing_runs_layers_again_in_the_same_dtype() -> None:
    found = []
    for checkpointing in (False, True):
        model = model_of("qwen3", computed=torch.bfloat16)
        if checkpointing:
            checkpoint_activations(model)
        seen: set[torch.dtype] = set()
        for layer in model.model.layers:
            layer.mlp.register_forward_hook(lambda module, inputs, output, seen=seen: seen.add(output.dtype))
        found.append(gradients(model, SMALL))
        assert seen == {torch.bfloat16}
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_the_model_has_its_own_weights_again_whatever_happens() -> None:
    model = model_of("qwen3", computed=torch.bfloat16)
    before = {name: id(p) for name, p in model.named_parameters()}
    pack = pack_samples(everything(), WHOLE)

    def broken(rows: Any, logp: torch.Tensor) -> torch.Tensor:
        raise KeyError("loss")

    with pytest.raises(KeyError):
        backward(model, pack, broken)
    score(model, pack)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert computing(model, lambda: {p.dtype for p in model.parameters()}) == {torch.bfloat16}


def test_tied_weights_are_rounded_together() -> None:
    model = model_of("llama", computed=torch.bfloat16)
    model.lm_head.weight = model.model.embed_tokens.weight

    def tied() -> bool:
        return model.lm_head.weight is model.model.embed_tokens.weight

    assert tied() and computing(model, tied)


def test_buffers_keep_their_dtype() -> None:
    model = model_of("minimax_m2", computed=torch.bfloat16)
    assert computing(model, lambda: {b.dtype for b in model.buffers() if b.is_floating_point()}) == {
        torch.float32
    }


def test_train_steps_below_the_resolution_of_bfloat16_are_not_lost() -> None:
    moved = []
    for dtype, computed in ((torch.float32, torch.bfloat16), (torch.bfloat16, None)):
        model = model_of("qwen3", dtype, computed)
        weight = model.model.layers[0].mlp.up_proj.weight
        before = weight.detach().clone()
        optimizer = make_optimizer(model, OptimizerSettings(lr=1e-6))
        for _ in range(3):
            assert train_step(
                model, optimizer, group_of_rollouts(), UpdateSettings(), trainer_version=3
            ).applied
        moved.append(float((weight != before).double().mean()))
    assert moved[0] > 0.9 and moved[1] < 0.1


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(
        tmp_path_factory.mktemp("model"),
        vocab_size=259,
        hidden=16,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=8,
        mlp=24,
    )


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_learner_goes_on_bit_for_bit_after_a_resume(
    directory: Path, tmp_path: Path, lora_rank: int
) -> None:
    section = TrainerSection(lr=1e-3, dtype="bfloat16", lora_rank=lora_rank)
    parts = [BatchPart(group_of_rollouts(), [])]
    ended = []
    for cut in (False, True):
        root = tmp_path / str(cut)
        learner = Learner(save_first(root, directory, section), section)
        for version in (1, 2):
            learner.train(parts)
            saved = learner.save(root, version, version - 1, b"digest")
            if cut:
                learner = Learner.resume(saved.path, saved.manifest_sha, section)
        ended.append(saved)
    assert ended[0].manifest_sha == ended[1].manifest_sha
    plain = save_first(tmp_path / "plain", directory, replace_dtype(section))
    first = Learner(save_first(tmp_path / "first", directory, section), section).checkpoint
    ours, theirs = first.canary.logprobs, plain.canary.logprobs
    assert ours != theirs and ours == pytest.approx(theirs, abs=0.05)


def replace_dtype(section: TrainerSection) -> TrainerSection:
    return section.model_copy(update={"dtype": "float32"})
