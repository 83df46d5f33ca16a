"""Low-rank adapters: exact through the tree, bit for bit on resume, and merged in the weights that other programs read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.trainer import TrainerSection
from tests.unit.trainer.forests import MODELS, everything, group_of_rollouts, qwen3_moe, seeded
from tests.unit.trainer.vanilla import alone, double_precision_throughout, merged, worst
from trainer import lora
from trainer.batch import BatchPart
from trainer.benchmarks.random_model import write_random_model
from trainer.learner import Learner, save_first
from trainer.model import load_model

__all__ = ["double_precision_throughout"]

IDS = torch.arange(12)[None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_random_model(
        directory, vocab_size=259, hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp=24
    )


def section(**values: Any) -> TrainerSection:
    return TrainerSection(**{"lr": 1e-2, "lora_rank": 2, "lora_alpha": 4, **values})


def part() -> BatchPart:
    return BatchPart(group_of_rollouts(), [])


@pytest.mark.usefixtures("double_precision_throughout")
@pytest.mark.parametrize("name", sorted(MODELS))
def test_gradients_of_adapters_are_those_of_one_row_per_sample(name: str) -> None:
    policy = seeded(MODELS[name], dtype=torch.float64)
    lora.inject(policy, section())
    with torch.no_grad():
        for key, parameter in policy.named_parameters():
            if "lora_B" in key:
                parameter.normal_(0, 0.1)
    _, exact = alone(policy, everything())
    assert all(".lora_" in key for key in exact) and len(exact) >= 2 * 4 * 2
    _, ours = merged(policy, everything(), "rectangles", budget=40)
    assert worst(ours, exact) <= 1e-10 < max(float(g.abs().max()) for g in exact.values())


def test_the_exported_weights_are_the_merged_ones_under_the_models_own_names(
    model: Path, tmp_path: Path
) -> None:
    learner = Learner(save_first(tmp_path, model, section()), section())
    first = learner.checkpoint.path
    plain, start = load_file(model / "model.safetensors"), all_tensors(first)
    assert plain.keys() == start.keys() and all(torch.equal(plain[name], start[name]) for name in plain)
    learner.train([part(), part()])
    trained = learner.save(tmp_path, 1, 0, b"").path
    exported = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    unmerged = load_model(trained, backend=None)
    lora.restore(unmerged, trained / "trainer", section())
    with torch.no_grad():
        ours, theirs = unmerged(IDS).logits, exported(IDS).logits
        assert torch.allclose(ours, theirs, atol=1e-5)
        assert not torch.allclose(theirs, load_model(model, backend=None)(IDS).logits, atol=1e-3), (
            "nothing was trained"
        )


def all_tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {
        name: value for file in directory.glob("*.safetensors") for name, value in load_file(file).items()
    }


def test_what_is_frozen_is_written_once(model: Path, tmp_path: Path) -> None:
    learner = Learner(save_first(tmp_path, model, section()), section())
    one, two = (
        (learner.train([part()]), learner.save(tmp_path, number, number - 1, b""))[1] for number in (1, 2)
    )
    same = {
        file.relative_to(one.path)
        for file in one.path.rglob("*.safetensors")
        if file.samefile(two.path / file.relative_to(one.path))
    }
    assert Path("trainer/base.safetensors") in same
    changed = all_tensors(one.path).keys() - {
        name for file in same if len(file.parts) == 1 for name in load_file(one.path / file)
    }
    assert changed and all("_proj" in name for name in changed), "embeddings, norms and head are frozen"


def test_a_run_that_is_cut_ends_at_the_same_bits(model: Path, tmp_path: Path) -> None:
    straight = Learner(save_first(tmp_path / "straight", model, section()), section())
    straight.train([part(), part(), part()])
    cut = Learner(save_first(tmp_path / "cut", model, section()), section())
    cut.train([part()])
    saved = cut.save(tmp_path / "cut", 1, 0, b"")
    again = Learner.resume(saved.path, saved.manifest_sha, section())
    again.train([part(), part()])
    shas = [one.save(tmp_path / "end", 2, 1, b"").manifest_sha for one in (straight, again)]
    assert shas[0] == shas[1]


def test_only_the_layers_that_were_named_are_adapted(model: Path) -> None:
    network = load_model(model)
    lora.inject(network, section(lora_targets=("q_proj", "v_proj")))
    trained = {name.split(".")[4] for name, p in network.named_parameters() if p.requires_grad}
    assert trained == {"q_proj", "v_proj"}


def test_a_dense_layer_of_a_mixture_is_adapted_and_its_experts_stay_frozen() -> None:
    policy = seeded(lambda: qwen3_moe(mlp_only_layers=[1]))
    lora.inject(policy, section(lora_targets=("gate_proj",)))
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    assert trained == [f"model.layers.1.mlp.gate_proj.lora_{factor}.default.weight" for factor in "AB"]


def test_what_cannot_be_adapted_is_refused_in_one_sentence(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"names 'qkv', but .* are called down_proj, gate_proj, k_proj"
    ):
        save_first(tmp_path, model, section(lora_targets=("qkv",)))
    plain = save_first(tmp_path, model, TrainerSection())
    with pytest.raises(ValueError, match=r"has no adapter, but trainer\.lora_rank is 2"):
        Learner(plain, section())
    adapted = save_first(tmp_path, model, section())
    with pytest.raises(ValueError, match=r"has \(2, \d+\) for .*lora_A.* the model has \(3, \d+\)"):
        Learner(adapted, section(lora_rank=3))
    with pytest.raises(ValueError, match=r"is of other layers than trainer\.lora_targets"):
        Learner(adapted, section(lora_targets=("q_proj",)))
