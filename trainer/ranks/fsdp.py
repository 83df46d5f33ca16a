"""A model whose parameters are spread over ranks: FSDP2 around every decoder layer and around the whole.

    tree pass ─▶ gather embeddings, norm, head ─▶ layer 1: gather, run, drop ─▶ … ─▶ layer L ─▶ logprobs
    backward  ─▶ gather a layer again, its gradient, reduce-scatter it, drop ─▶ …

Each rank keeps 1/N of every parameter, gradient and moment. Gradients are summed, not averaged: the denominator of the loss already covers
the whole train step (loss/aggregation.py). Every pass includes a gather and a reduce-scatter of each layer, so every rank
must make the same passes. lockstep.py ensures that.

Tensor and context parallelism would be added here: with more mesh dimensions, which `fully_shard` does not use.
"""

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from trainer.ranks.process_group import Ranks
from trainer.tree.forward import tree_pass


def shard(model: nn.Module, ranks: Ranks, dtype: torch.dtype = torch.float32) -> None:
    """Spread the parameters of a model over ranks, in place. The model must have the same values on every rank and be attached to tree attention.

    Parameters keep their dtype. Gathered parameters, and so every pass, are in `dtype` (mixed_precision.py). Gradients are summed in float32.
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
    untyped: Any = model
    untyped.tree_pass = MethodType(tree_pass, model)
    register_fsdp_forward_method(model, "tree_pass")


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The modules that transformers lists in `_no_split_modules`, in order."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, by reference."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank: a collective if it is spread."""
    full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach()


def gradients(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """This rank's part of every existing gradient."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield local(parameter.grad)
