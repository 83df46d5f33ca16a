"""A model whose parameters are spread over ranks: FSDP2 around every decoder layer and around the whole.

    tree pass ─▶ gather embeddings, norm, head ─▶ layer 1: gather, run, drop ─▶ … ─▶ layer L ─▶ logprobs
    backward  ─▶ gather a layer again, its gradient, reduce-scatter it, drop ─▶ …

Each rank keeps 1/N of every parameter, gradient and moment. Gradients are summed, not averaged: the denominator of the loss is that of
the whole train step already (loss/aggregation.py). So a gather and a reduce-scatter of each layer is part of every pass, and every rank
must make the same passes: walk.py sees to that.

Tensor and context parallelism would come in here: a mesh of more than one dimension, whose others `fully_shard` leaves alone.
"""

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from trainer.ranks.meeting import Ranks
from trainer.tree.forward import tree_pass


def shard(model: nn.Module, ranks: Ranks, dtype: torch.dtype = torch.float32) -> None:
    """Spread the parameters of a model with the same values on every rank; it must be attached to tree attention. In place.

    They stay in their dtype; what is gathered, and so every pass, is in `dtype` (computing.py), and gradients are summed over ranks in float32.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.size,), mesh_dim_names=("data",))
    precision = MixedPrecisionPolicy()
    if dtype != torch.float32:  # inputs are not cast: a pass has temperatures among them
        precision = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    for module in (*decoder_layers(model), model):
        wrapped = fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
        assert isinstance(wrapped, FSDPModule)
        wrapped.set_gradient_divide_factor(1.0)
        wrapped.set_force_sum_reduction_for_comms(True)
    whole: Any = model
    whole.tree_pass = MethodType(tree_pass, model)
    register_fsdp_forward_method(model, "tree_pass")


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The modules that transformers says must stay in one piece, in order."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, by reference."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank: a collective where it is spread."""
    full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach()


def gradients(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """This rank's part of every gradient that is there."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield local(parameter.grad)
