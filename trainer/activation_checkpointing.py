"""Activation checkpointing under one name for every supported version of transformers."""

from collections.abc import Mapping
from typing import Any


def checkpoint_activations(model: Any, options: Mapping[str, Any] | None = None) -> None:
    """Recompute the activations of `model`'s layers in the backward pass instead of keeping them.

    `options` are those of `torch.utils.checkpoint.checkpoint`; without them it is not reentrant, because a reentrant one cuts the
    gradients of a tree in many passes (tree/path.py refuses it). transformers 5.23 renamed the method that
    earlier versions call `gradient_checkpointing_enable`, and warns about the old name.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, **(options or {})})
