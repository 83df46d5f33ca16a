"""Loads a model onto many ranks without holding all of it in each rank's memory: rank 0 reads it, the others build it without values.

    rank 0   load ─ attach (probe) ─▶ agree on names and shapes ─▶ shard ─▶ broadcast a tensor, keep a part, drop the rest ─▶ the next
    others   build on "meta" ───────▶                              shard ─▶ empty parts ─▶ a whole tensor for a moment ─▶ its part

Tensors that are not in a checkpoint are sent too: buffers that are computed when a model is built, and other tensors that modules keep.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.trainer import TrainerSection
from trainer import lora
from trainer.model import empty_model, load_model
from trainer.ranks.fsdp import shard
from trainer.ranks.process_group import Ranks
from trainer.tree.attention import Backend
from trainer.tree.forward import attach_tree_attention


def dealt_model(directory: Path, section: TrainerSection, ranks: Ranks) -> nn.Module:
    """The model of a checkpoint, spread over ranks and attached to tree attention. A collective.

    Raises ValueError and ConfigurationError as `load_model` and `lora.restore` do, on every rank.
    """
    backend: Backend = "rectangles" if ranks.device.type == "cpu" else "flex"
    with ranks.agreeing(ConfigurationError, ValueError):
        if ranks.leads:
            model = load_model(directory, backend=None)
            if section.lora_rank:
                lora.restore(model, directory / "trainer", section)
            model.to(ranks.device)
        else:
            model = empty_model(directory)
            if section.lora_rank:
                lora.inject(model, section)
        attach_tree_attention(model, backend, probe=ranks.leads)
    reported = ranks.exchange(_shape_of(model))
    with ranks.agreeing(ValueError):
        if _shape_of(model) != reported[0]:
            raise ValueError(f"{directory} is another model here than on rank 0")
    values = [tensor.detach() for _, tensor in _tensors(model)] if ranks.leads else []
    shard(model, ranks, getattr(torch, section.dtype))
    if not ranks.leads:
        _give_memory(model, ranks.device)
    values.reverse()
    for _, tensor in _tensors(model):
        _deal(tensor, values.pop() if ranks.leads else None, ranks)
    return model


def _deal(tensor: Tensor, value: Tensor | None, ranks: Ranks) -> None:
    """Fill this rank's part of `tensor` with rank 0's `value`."""
    if value is None:
        value = torch.empty(tensor.shape, dtype=tensor.dtype, device=ranks.device)
    value = value.to(ranks.device).contiguous()
    dist.broadcast(value, src=0)
    with torch.no_grad():
        if isinstance(tensor, DTensor):
            part = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
            tensor.to_local().copy_(part.to_local())
        else:
            tensor.copy_(value)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a model, once, in an order that is the same on all ranks."""
    yield from model.named_parameters()
    yield from model.named_buffers()
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{name}.{key}", value


def _shape_of(model: nn.Module) -> str:
    """Hex sha256 of the properties that must be equal on all ranks before a tensor is sent."""
    lines = [
        f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"
        for name, tensor in _tensors(model)
    ]
    return hashlib.sha256("\n".join([*lines, repr(model)]).encode()).hexdigest()


def _give_memory(model: nn.Module, device: torch.device) -> None:
    """Allocate memory for the parts of a model without values. Torch swaps spread tensors in place, so tied tensors stay tied."""
    for module in model.modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                setattr(module, key, torch.empty_like(value, device=device))
    model.to_empty(device=device)
