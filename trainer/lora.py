"""Low-rank adapters (LoRA, arXiv:2106.09685) through peft: W + (α/r)·B·A with W frozen, trained unmerged, exported merged.

    <version>/model*.safetensors              merged: for rollout servers and any Hugging Face program
    <version>/trainer/adapter.safetensors     A and B, exact
    <version>/trainer/base*.safetensors       W of the adapted layers, so that no merge has to be undone; a hard link from version 1 on

The model stays an object of its own class: its layers are replaced in place. peft is imported only if there is an adapter.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.trainer import TrainerSection
from trainer.files import SHARD_BYTES, CheckpointFiles, split

ADAPTER, BASE = "adapter", "base"
_NAME = "default"  # peft's, of the only adapter
_APART = "policy"  # the model's name within a module that hides its architecture from peft
_BASE_WEIGHT = ".base_layer.weight"


def inject(model: nn.Module, section: TrainerSection, seed: int = 0) -> None:
    """Adapt the layers that `section` names; only A and B take gradients from now on. A is drawn from `seed`, B is zero.

    Raises ConfigurationError if the model has no layer of such a name.
    """
    from peft import LoraConfig, inject_adapter_in_model

    layers = [name for name, _ in _linear(model)]
    known = {name.rpartition(".")[2] for name in layers}
    wanted = known if section.lora_targets == ("all",) else set(section.lora_targets)
    if strange := sorted(wanted - known):
        raise ConfigurationError(
            f"trainer.lora_targets names {strange[0]!r}, but this model's linear layers are called {', '.join(sorted(known))}"
        )
    chosen = "|".join(re.escape(f"{_APART}.{name}") for name in layers if name.rpartition(".")[2] in wanted)
    config = LoraConfig(r=section.lora_rank, lora_alpha=section.lora_alpha, target_modules=chosen)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # For a mixture of experts that it knows, peft would take names like gate_proj for its experts and adapt those instead of the layers.
        inject_adapter_in_model(config, nn.ModuleDict({_APART: model}), _NAME)


def adapted(model: nn.Module) -> bool:
    """Whether `inject` has adapted the model."""
    return any(True for _ in _layers(model))


def merged(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` under the names of the model without adapters, with W + (α/r)·B·A in the adapted layers; tied tensors are one.

    `state` has the whole tensors of `model.state_dict()`. For a sharded model, `state_dict()` itself has only parts.
    """
    layers = dict(_layers(model))
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        layer, _, rest = name.partition(".base_layer.")
        if rest == "weight":
            a, b = (state[f"{layer}.lora_{factor}.{_NAME}.weight"] for factor in "AB")
            tensor = tensor + (b @ a) * layers[layer].scaling[_NAME]
        if not _is_adapter(name):
            found[f"{layer}.{rest}" if rest else name] = tensor
    return found


def add_adapter(files: CheckpointFiles, state: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Add the files that `restore` reads, below the checkpoint's trainer/; `state` as for `merged`. Raises OSError."""
    adapter = {name: tensor for name, tensor in state.items() if _is_adapter(name)}
    base = {
        name.replace(_BASE_WEIGHT, ".weight"): tensor
        for name, tensor in state.items()
        if name.endswith(_BASE_WEIGHT)
    }
    files.add_tensors(f"trainer/{ADAPTER}", [adapter])
    files.add_tensors(f"trainer/{BASE}", split(base, shard_bytes))


def restore(model: nn.Module, place: Path, section: TrainerSection) -> None:
    """Replace the merged weights of a loaded `model` with the frozen weights and the adapter in `place`.

    Raises ValueError if the adapter is missing, or has another rank or other layers.
    """
    file = place / f"{ADAPTER}.safetensors"
    if not file.is_file():
        raise ValueError(f"{place} has no adapter, but trainer.lora_rank is {section.lora_rank}")
    base = {
        key: value
        for part in sorted(place.glob(f"{BASE}*.safetensors"))
        for key, value in load_file(part).items()
    }
    _copy(base, dict(model.named_parameters()), place)
    inject(model, section)
    parameters = {name: tensor for name, tensor in model.named_parameters() if _is_adapter(name)}
    adapter = load_file(file)
    if parameters.keys() != adapter.keys():
        mismatch = sorted(parameters.keys() ^ adapter.keys())[0]
        raise ValueError(f"{file} is of other layers than trainer.lora_targets: {mismatch}")
    _copy(adapter, parameters, file)


def _copy(tensors: Mapping[str, Tensor], into: Mapping[str, Tensor], place: Path) -> None:
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name not in into or into[name].shape != tensor.shape:
                have = tuple(into[name].shape) if name in into else "nothing"
                raise ValueError(
                    f"{place} has {tuple(tensor.shape)} for {name!r}, where the model has {have}"
                )
            into[name].copy_(tensor)


def _is_adapter(name: str) -> bool:
    return ".lora_" in name


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Adapted layers by name."""
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A"))


def _linear(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers by name, without the head. A mixture's experts are separate tensors and stay frozen."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return (
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    )
