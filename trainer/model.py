"""Loading and saving any Hugging Face causal LM directory, ready for training.

Weights are read from safetensors only, never over the network, never with code from the directory. The log-prob head
computes in float32 for every smaller model dtype (see logprobs.py).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.utils import logging as transformers_logging

from orchestrator.pool.chat_format import FILES
from trainer.tree.attention import Backend
from trainer.tree.forward import attach_tree_attention

_OWN_WEIGHTS = re.compile(
    r"(model(-\d+-of-\d+)?\.safetensors|pytorch_model(-\d+-of-\d+)?\.bin)(\.index\.json)?"
)


def load_model(
    directory: Path, *, dtype: torch.dtype = torch.float32, backend: Backend | None = "rectangles"
) -> nn.Module:
    """The causal LM of `directory`, in training mode, attached to tree attention (not with backend=None).

    Raises ValueError if the model is missing, if its weights do not fit the configuration or are not safetensors, or if
    prefix-tree merging is not exact for it (the error names the feature).
    """
    if not (directory / "config.json").is_file():
        raise ValueError(f"{directory} is not a model directory: it has no config.json")
    if not list(directory.glob("*.safetensors")):
        raise ValueError(f"{directory} has no *.safetensors file; other weight formats are not read")
    transformers_logging.disable_progress_bar()  # stderr is a log
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, KeyError, ValueError, SafetensorError) as error:
        raise ValueError(f"the model in {directory} cannot be loaded: {error}") from error
    mismatched = sorted(
        {*report["missing_keys"], *report["unexpected_keys"], *map(str, report["mismatched_keys"])}
    )
    if mismatched:  # transformers would fill them with random numbers and only warn
        raise ValueError(f"the weights in {directory} do not fit its configuration: {mismatched[0]}")
    if backend is not None:
        attach_tree_attention(model, backend)
    trained: nn.Module = model.train()
    return trained


def empty_model(directory: Path) -> nn.Module:
    """The model of `directory` as `load_model` makes it, but without values, on torch's "meta" device, and not attached. Raises ValueError."""
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
        model.use_kernels = False  # as from_pretrained sets it by default
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise ValueError(f"the model in {directory} cannot be built: {error}") from error
    empty: nn.Module = model.train()
    return empty


def save_configuration(model: nn.Module, directory: Path) -> None:
    """Write config.json, and generation_config.json if the model can generate, in Hugging Face format."""
    hf: Any = model
    hf.config.dtype = str(hf.dtype).removeprefix("torch.")
    # FSDP2 puts a torch class in front of the class of a sharded model
    hf.config.architectures = [
        next(kind.__name__ for kind in type(hf).__mro__ if not kind.__module__.startswith("torch."))
    ]
    hf.config.save_pretrained(directory)
    if hf.can_generate():
        hf.generation_config.save_pretrained(directory)


def stored_weights(
    model: nn.Module, state: Mapping[str, torch.Tensor] | None = None
) -> list[dict[str, torch.Tensor]]:
    """The weights under the names and in the layout of the architecture's published checkpoints, tied ones once.

    Frozen tensors come first and separately, so that their files stay the same from version to version. The tensors are those that
    `save_pretrained` writes; it cannot skip tensors that are on the disk already. `state`: the whole tensors of a model that is spread over
    ranks, in place of its own; tied ones are one tensor.
    """
    hf: Any = model
    tensors = {
        name: tensor
        for name, tensor in (hf.state_dict() if state is None else state).items()
        if name not in (hf._keys_to_ignore_on_save or ())
    }
    tensors = remove_tied_weights_from_state_dict(tensors, hf)
    frozen = {name for name, parameter in hf.named_parameters() if not parameter.requires_grad}
    halves = (
        {name: tensor for name, tensor in tensors.items() if (name in frozen) is frozen_half}
        for frozen_half in (True, False)
    )
    return [revert_weight_conversion(hf, half) for half in halves if half]


def own_weights(directory: Path) -> list[Path]:
    """The files of a directory that hold its model's weights or their index, by the usual names of published models."""
    return [path for path in sorted(directory.iterdir()) if _OWN_WEIGHTS.fullmatch(path.name)]


def tokenizer_files(directory: Path) -> list[Path]:
    """Tokenizer and chat template of a model directory. Raises ValueError if it has no tokenizer."""
    found = [directory / name for name in FILES if (directory / name).is_file()]
    if not {"tokenizer.json", "tokenizer.model"} & {file.name for file in found}:
        raise ValueError(f"{directory} has no tokenizer: neither tokenizer.json nor tokenizer.model is there")
    return found


def check_vocabulary(model: nn.Module, directory: Path) -> None:
    """Raise ValueError if the tokenizer of `directory` has ids without an embedding in the model."""
    if not (directory / "tokenizer.json").is_file():
        return
    known = (
        max(Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab(with_added_tokens=True).values())
        + 1
    )
    hf: Any = model
    rows = hf.get_input_embeddings().num_embeddings
    if known > rows:
        raise ValueError(
            f"vocabulary mismatch in {directory}: the tokenizer has {known} ids, the model only {rows}"
        )
