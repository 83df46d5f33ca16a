"""Models, settings and comparisons of the scenarios of ranks_at_work.py."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from orchestrator.settings.config import Config
from orchestrator.settings.trainer import TrainerSection
from tests.unit.trainer import forests
from trainer import lora
from trainer.ranks.fsdp import whole
from trainer.ranks.process_group import Ranks
from trainer.ranks.rank_env import Place
from trainer.tree.forward import attach_tree_attention
from trainer.tree.passes import PassBudget
from trainer.tree.replay import attach_replay
from trainer.tree.routing import routers_of
from trainer.update import UpdateSettings

ARGUMENTS = {"run": "test"}
MODELS = forests.MODELS | {
    "dense above experts": partial(forests.qwen3_moe, num_hidden_layers=3, mlp_only_layers=[2])
}
SMALL = PassBudget(20)  # many trunks and leaves, different ones on each rank
Scenario = Callable[[Place, Path], Any]
Work = Callable[[Ranks], Any]


def patient(silence_s: float = 60.0, **trainer: Any) -> Config:
    return Config.model_validate(
        {"timeouts": {"rank_silence_s": silence_s}, "trainer": {"lr": 1e-2, "pack_tokens": 64, **trainer}}
    )


def model_of(name: str, dtype: torch.dtype = torch.float64, adapters: TrainerSection | None = None) -> Any:
    """With `adapters` B is not zero, as after some training."""
    model = forests.seeded(MODELS[name], dtype=dtype).train()
    attach_tree_attention(model)
    if routers_of(model):
        attach_replay(model)
    if adapters is not None:
        lora.inject(model, adapters)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(0, 0.1, generator=generator)
    return model


def worst(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: whole(parameter).clone() for name, parameter in model.named_parameters()}


def loose(**more: Any) -> UpdateSettings:
    return UpdateSettings(max_grad_norm=1e9, keep_logprobs=True, **more)


ADAPTERS = TrainerSection(lora_rank=3, lora_alpha=6)
"""Rows that two ranks cannot share evenly."""
NARROW = TrainerSection(lora_rank=1, lora_alpha=2, lora_targets=("q_proj",))
"""A has one row, so rank 1 holds nothing of it; keys and values of the first layer depend on nothing that trains."""
UPPER = TrainerSection(lora_rank=2, lora_targets=("gate_proj",))
"""Of "dense above experts" the last layer alone."""
MIXED = [*forests.group_of_rollouts(), *forests.ends_inside_a_node()]
