"""The weights from which a batch was trained, in the dtype of the check: with low-rank adapters unmerged, as the trainer has them."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from orchestrator.settings.trainer import TrainerSection
from trainer import lora
from trainer.model import load_model
from trainer.tree.forward import attach_tree_attention
from trainer.tree.replay import attach_replay


def load_recorded(checkpoint: Path, section: TrainerSection, dtype: torch.dtype) -> nn.Module:
    """The model of `checkpoint`, attached to tree attention, and to replay if `section` wants that. Raises ValueError if it cannot be loaded
    or merged."""
    model = load_model(checkpoint, dtype=dtype, backend=None)
    if section.lora_rank:
        lora.restore(model, checkpoint / "trainer", section)
        model.to(dtype)  # the adapters are float32
    hf: Any = model
    if dtype == torch.float64 and getattr(hf.config, "_experts_implementation", None) == "grouped_mm":
        hf.set_experts_implementation("eager")  # that kernel does not support float64
    attach_tree_attention(model)
    if section.routing_replay:
        attach_replay(model)
    return model
