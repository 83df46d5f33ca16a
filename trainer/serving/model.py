"""Choosing and loading the forward pass of a model directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from trainer.model_directory import ModelDirectory, changed_keys, inspect_directory
from trainer.serving import dense
from trainer.serving.kv import KvShape
from trainer.serving.packing import Plan


class Model(Protocol):
    """Loaded weights with their forward pass. Immutable, so a weight update exchanges one reference."""

    config: Mapping[str, Any]
    vocab_size: int
    kv_shape: KvShape
    digest: str
    """Of the tensors in its files (`runtime.weights_digest`)."""

    def logits(self, plan: Plan) -> Tensor:
        """fp32 [M, vocabulary] for the wanted tokens of `plan`; stores the keys and values of all its tokens."""


def load_model(directory: ModelDirectory) -> Model:
    """The fast forward pass if it is exact for this configuration, otherwise transformers. Raises ValueError."""
    if dense.supports(directory.config):
        return dense.DenseModel(directory)
    from trainer.serving.hf import HfModel  # imports transformers

    return HfModel(directory)


def load_successor(path: str, current: Model) -> Model:
    """New weights for `current`: the same architecture, shapes and vocabulary, complete and finite.

    Raises ValueError, one sentence; `current` is untouched either way."""
    directory = inspect_directory(Path(path))
    changed = changed_keys(current.config, directory.config)
    if changed:
        raise ValueError(
            f"{path} is another model than the served one: {', '.join(changed)} differ in config.json"
        )
    return load_model(directory)
