"""Passes in bfloat16 over weights in float32: the trained, stored and served weights stay float32, the operands of products are half as large.

    weights, gradients, moments   float32, as without mixed precision
    a walk over a tree            parameters rounded to bfloat16 once, activations bfloat16, attention's sums and the head in float32
    backward                      a pass's gradients in bfloat16; each is added to the float32 one

Buffers stay as they are: rotary frequencies, and the selection bias of a mixture of experts, whose small differences choose experts.
For models that are spread over ranks, FSDP2 does the same (ranks/fsdp.py).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.func import functional_call

T = TypeVar("T")
_ATTRIBUTE = "compute_dtype"


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Make `computing` run the model's passes in `dtype` from now on; the parameters keep their dtype."""
    setattr(model, _ATTRIBUTE, dtype)


def computing(model: nn.Module, work: Callable[[], T]) -> T:
    """Do `work`, forward and backward passes of `model`, in the dtype set by `compute_in`; without one, in the model's own.

    Gradients arrive at the parameters themselves, in their dtype. A copy of the parameters in the compute dtype exists while `work` runs.
    """
    dtype: torch.dtype | None = getattr(model, _ATTRIBUTE, None)
    if dtype is None:
        return work()
    rounded = {f"model.{name}": parameter.to(dtype) for name, parameter in model.named_parameters()}
    # Around the whole walk, not one forward pass: activation checkpointing runs layers again in the backward pass.
    done: T = functional_call(_Working(model), rounded, (work,))
    return done


class _Working(nn.Module):
    """A module whose call runs work on a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()
