"""The learner that a configuration makes: rates, optimizer, anchors, and the scale of a batch's advantages."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from orchestrator.contracts.choices import BatchScaling
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.config import Config
from orchestrator.settings.trainer import MIN_EPS, TrainerSection
from tests.unit.trainer.forests import everything, group_of_rollouts
from trainer.advantage_scale import scaled_parts
from trainer.batch import BadBatch, BatchPart
from trainer.benchmarks.random_model import write_random_model
from trainer.checkpoint import open_checkpoint
from trainer.learner import Learner, optimizer_settings, save_first
from trainer.loop import check_config
from trainer.model import load_model
from trainer.update import make_optimizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_random_model(
        directory, vocab_size=259, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=24
    )


def part() -> BatchPart:
    return BatchPart(group_of_rollouts(), [])


def learner(model: Path, root: Path, **section: Any) -> Learner:
    settings = TrainerSection(**{"lr": 1e-3, **section})
    return Learner(save_first(root, model, settings), settings)


def test_every_train_step_has_its_rate_also_after_a_resume(model: Path, tmp_path: Path) -> None:
    section: dict[str, Any] = {
        "schedule": "linear",
        "warmup_steps": 2,
        "decay_steps": 6,
        "last_lr_share": 0.2,
    }
    whole = learner(model, tmp_path / "whole", **section)
    rates = [report["lr"] for report in whole.train([part() for _ in range(5)])]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3, 8e-4, 6e-4])
    cut = learner(model, tmp_path / "cut", **section)
    first = cut.train([part() for _ in range(3)])
    saved = cut.save(tmp_path / "cut", 1, 0, b"digest")
    again = Learner.resume(saved.path, saved.manifest_sha, TrainerSection(lr=1e-3, **section))
    rest = again.train([part() for _ in range(2)])
    assert [report["lr"] for report in [*first, *rest]] == rates
    same = [one.save(tmp_path / name, 2, 1, b"").manifest_sha for one, name in ((whole, "a"), (again, "b"))]
    assert same[0] == same[1]


def test_a_constant_rate_is_the_configured_one_to_the_last_bit(model: Path, tmp_path: Path) -> None:
    assert [r["lr"] for r in learner(model, tmp_path, lr=0.1).train([part(), part()])] == [0.1, 0.1]


def test_all_train_steps_of_a_batch_are_one_checkpoint(model: Path, tmp_path: Path) -> None:
    one = learner(model, tmp_path)
    seen: list[int] = []
    reports = one.train([part(), part(), part()], lambda number, values: seen.append(number))
    saved = one.save(tmp_path, 1, 0, b"digest")
    assert seen == [0, 1, 2] and all(report["applied"] for report in reports)
    assert open_checkpoint(saved.path).state.train_steps == 3


def test_without_decay_of_vectors_only_matrices_shrink(model: Path, tmp_path: Path) -> None:
    network = load_model(model)
    settings = optimizer_settings(TrainerSection(lr=0.1, weight_decay=1.0, decay_vectors=False))
    optimizer = make_optimizer(network, settings)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    shrunk = {name for name, p in network.named_parameters() if not torch.equal(p, before[name])}
    assert shrunk == {name for name, p in before.items() if p.ndim >= 2} != set(before)


def test_the_least_epsilon_keeps_weights_without_a_gradient_finite(model: Path) -> None:
    network = load_model(model)
    optimizer = make_optimizer(network, optimizer_settings(TrainerSection(eps=MIN_EPS)))
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(bool(torch.isfinite(parameter).all()) for parameter in network.parameters())


def test_the_optimizer_without_decay_of_vectors_survives_a_resume(model: Path, tmp_path: Path) -> None:
    section: dict[str, Any] = {"weight_decay": 0.1, "decay_vectors": False}
    straight = learner(model, tmp_path / "straight", **section)
    straight.train([part(), part()])
    cut = learner(model, tmp_path / "cut", **section)
    cut.train([part()])
    saved = cut.save(tmp_path / "cut", 1, 0, b"")
    again = Learner.resume(saved.path, saved.manifest_sha, TrainerSection(lr=1e-3, **section))
    again.train([part()])
    shas = [one.save(tmp_path / "end", 2, 1, b"").manifest_sha for one in (straight, again)]
    assert shas[0] == shas[1]


def test_a_gradient_above_the_spike_norm_skips_its_train_step_and_the_batch_goes_on(
    model: Path, tmp_path: Path
) -> None:
    reports = learner(model, tmp_path, spike_norm=1e-6).train([part(), part()])
    assert [(r["applied"], r["skip_reason"]) for r in reports] == [(False, "gradient_spike")] * 2
    [report] = learner(model, tmp_path / "off", spike_norm=0.0).train([part()])
    assert report["applied"]


def test_the_proximal_anchor_is_taken_once_for_all_train_steps_of_a_batch(
    model: Path, tmp_path: Path
) -> None:
    one = learner(model, tmp_path, loss="grpo", anchor="proximal", tis_max=1.0, lr=3e-2)
    first, second = one.train([part(), part()])
    assert first["seconds"]["anchor"] > 0 and "anchor" not in second["seconds"]
    assert first["clip_fraction"] == 0 and second["clip_fraction"] > 0
    assert first["cut_fraction"] > 0
    [next_batch] = one.train([part()])
    assert next_batch["clip_fraction"] == 0


@pytest.mark.parametrize(
    ("section", "warned"),
    [
        ({"anchor": "proximal"}, True),
        ({"anchor": "proximal", "parts": 2}, False),
        ({"parts": 1}, False),
        ({"anchor": "proximal", "loss": "reinforce"}, False),
        ({"anchor": "proximal", "loss": "sft"}, False),
    ],
)
def test_a_ratio_that_can_only_be_one_is_logged_at_the_start(section: dict[str, Any], warned: bool) -> None:
    with capture_logs() as logged:
        check_config(Config.model_validate({"trainer": section}))
    assert [entry["event"] for entry in logged] == ["trainer.ratio_is_one"] * warned


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        ({"top_p": 0.9}, r"sampling\.top_p is 0\.9: .* ratios would be wrong; set it to 1 \(evaluations may"),
        ({"top_k": 40}, r"sampling\.top_k is 40: .* ratios would be wrong; set it to -1"),
        ({"top_k": 1}, r"sampling\.top_k is 1: "),
        (
            {"temperature": 0},
            r"sampling\.temperature is 0\.0: greedy samples have no log-prob.*; set it above 0",
        ),
        ({"temperature": 1e-7}, r"sampling\.temperature is 1e-07: greedy"),
    ],
)
def test_a_run_whose_log_probabilities_are_not_those_of_what_is_sampled_is_not_trained(
    sampling: dict[str, Any], sentence: str
) -> None:
    check_config(Config.model_validate({"sampling": {"temperature": 0.7, "repetition_tokens": 5}}))
    with pytest.raises(ConfigurationError, match=sentence):
        check_config(Config.model_validate({"sampling": sampling}))


@pytest.mark.parametrize(
    "section", [{"balance": 0.01}, {"expert_bias": "balance"}, {"routing_replay": True}], ids=str
)
def test_a_policy_without_the_experts_that_a_key_needs_is_never_published(
    section: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"trainer\.{next(iter(section))} is .* begin a new run with"
    ):
        save_first(tmp_path / "policies", model, TrainerSection.model_validate(section))
    assert not (tmp_path / "policies").exists()
    first = save_first(tmp_path / "policies", model, TrainerSection())
    with pytest.raises(ConfigurationError, match="begin a new run with"):
        Learner(first, TrainerSection.model_validate(section))


def test_proximal_logprobs_that_are_not_finite_make_the_batch_bad(model: Path, tmp_path: Path) -> None:
    one = learner(model, tmp_path, anchor="proximal")
    with torch.no_grad():
        next(one._model.parameters()).fill_(float("nan"))
    with pytest.raises(BadBatch, match="the proximal logprobs cannot be used: sample"):
        one.train([part()])


@pytest.mark.parametrize("loss", ["cispo", "grpo", "dapo", "gspo", "reinforce", "sft"])
def test_every_configured_loss_trains(loss: str, model: Path, tmp_path: Path) -> None:
    [report] = learner(model, tmp_path, loss=loss, aggregation="sample", anchor="proximal").train([part()])
    assert report["applied"] and report["gradient_norm"] > 0


@pytest.mark.parametrize(
    ("how", "mean", "spread"),
    [(BatchScaling.NONE, 0.5, 2.0), (BatchScaling.STD, 0.25, 1.0), (BatchScaling.WHITEN, 0.0, 1.0)],
)
def test_a_batchs_advantages_are_scaled_by_all_its_train_steps_together(
    how: BatchScaling, mean: float, spread: float
) -> None:
    samples = everything()
    tokens = sum(sample.action_len for sample in samples)
    flat = np.concatenate([np.full(s.action_len, i % 3, np.float64) for i, s in enumerate(samples)])
    levels = (np.arange(3) - flat.mean()) / flat.std() * 2.0 + 0.5
    given = [
        dataclasses.replace(s, advantage=np.full(s.action_len, levels[i % 3], np.float32))
        for i, s in enumerate(samples)
    ]
    parts = scaled_parts([BatchPart(given[:7], []), BatchPart(given[7:], [])], how)
    assert [len(one.samples) for one in parts] == [7, len(samples) - 7]
    all_tokens = np.concatenate([sample.advantage for one in parts for sample in one.samples])
    assert len(all_tokens) == tokens and all_tokens.dtype == np.float32
    assert all_tokens.mean() == pytest.approx(mean, abs=1e-3)
    assert all_tokens.std() == pytest.approx(spread, abs=1e-3)


def test_layers_that_run_again_in_the_backward_pass_come_to_the_same_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[bool] = []
    forward = Qwen3MLP.forward

    def counted(mlp: Qwen3MLP, hidden: torch.Tensor) -> torch.Tensor:
        runs.append(torch.is_grad_enabled())
        found: torch.Tensor = forward(mlp, hidden)
        return found

    monkeypatch.setattr(Qwen3MLP, "forward", counted)
    saved, counts = [], []
    for again in (False, True):
        one = learner(model, tmp_path / str(again), activation_checkpointing=again)
        runs.clear()
        one.train([part()])
        counts.append(sum(runs))
        saved.append(load_file(one.save(tmp_path / str(again), 1, 0, b"").path / "model.safetensors"))
    assert counts[1] == 2 * counts[0]
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_a_learner_trains_saves_and_goes_on_where_it_stopped(model: Path, tmp_path: Path) -> None:
    one = learner(model, tmp_path, lr=1e-3)
    assert {parameter.device.type for parameter in one._model.parameters()} == {"cuda"}
    one.train([part()])
    saved = one.save(tmp_path, 1, 0, b"")
    again = Learner.resume(saved.path, saved.manifest_sha, TrainerSection(lr=1e-3))
    first, second = (who.train([part()])[0]["loss"] for who in (one, again))
    assert first == pytest.approx(second, rel=1e-3)
