"""Keys and values of the path above a pass, and the gradients that arrive there from below.

One buffer per layer for each of keys, values, and their gradients, as long as the deepest path on which a pass hangs. A trunk writes its
stretch when it is forwarded, everything that hangs on it reads it and adds its gradients, and the trunk's own backward pass takes them.
What lies behind the open trunks is free again, so the memory is that of one path whatever the tree's size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@dataclass(slots=True)
class _Layer:
    """[capacity, H_kv, D] each, so that a path is one piece of memory; gradients in float32 at least, however many passes add to them."""

    keys: Tensor
    values: Tensor
    d_keys: Tensor
    d_values: Tensor
    above: tuple[Tensor, Tensor] | None = (
        None  # the present path, [1, H_kv, past, D]; its backward ends in d_keys and d_values
    )
    own: tuple[Tensor, Tensor] | None = None  # of the present pass, with their graph


class Path:
    """The path of the pass that is forwarded. Attention layers ask it for the `past` and leave their own keys and values."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: tokens of the deepest path."""
        self._capacity = capacity
        self._layers: dict[nn.Module, _Layer] = {}
        self._past = 0
        self._with_graph = False

    def begin(self, past: int) -> None:
        """From now on a pass is forwarded that hangs below the first `past` tokens."""
        self._past, self._with_graph = past, torch.is_grad_enabled()
        for layer in self._layers.values():
            layer.above = layer.own = None

    def attended(self, module: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
        """Take a layer's own keys and values [1, H_kv, T, D]; return those of the path [1, H_kv, past, D], None if it is empty.

        Activation checkpointing calls it a second time in the backward pass and gets the same. Raises ValueError when it is of the
        reentrant kind, which would cut the gradients between passes.
        """
        if not self._capacity:
            return None
        if self._with_graph and not torch.is_grad_enabled():
            raise ValueError(
                "a tree in several passes needs activation checkpointing with use_reentrant=False"
            )
        layer = self._layers.get(module)
        if layer is None:
            wide = torch.promote_types(key.dtype, torch.float32)
            layer = self._layers[module] = _Layer(
                keys=self._buffer(key, key.dtype),
                values=self._buffer(value, value.dtype),
                d_keys=self._buffer(key, wide),
                d_values=self._buffer(value, wide),
            )
        if layer.own is None:
            layer.own = key, value
        if layer.above is None and self._past:
            layer.above = (
                self._above(layer.keys, layer.d_keys, key),
                self._above(layer.values, layer.d_values, value),
            )
        return layer.above

    def _buffer(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        return like.new_zeros((self._capacity, like.shape[1], like.shape[3]), dtype=dtype)

    def _above(self, buffer: Tensor, gradient: Tensor, own: Tensor) -> Tensor:
        """The path of the pass whose `own` keys or values these are. Where frozen weights alone made them, no gradient goes on behind them."""
        rows = buffer[: self._past].transpose(0, 1)[None]
        if not own.requires_grad:
            return rows
        anchor = buffer.new_empty(
            0, requires_grad=True
        )  # without an input that needs a gradient there is no backward
        above: Tensor = _Above.apply(anchor, rows, gradient[: self._past].transpose(0, 1)[None])  # type: ignore[no-untyped-call]
        return above

    def keep(self, trunk: int) -> None:
        """The first `trunk` tokens of the pass just forwarded lengthen the path; no gradient has arrived at them yet."""
        rows = slice(self._past, self._past + trunk)
        for layer in self._layers.values():
            assert layer.own is not None
            for buffer, own in zip((layer.keys, layer.values), layer.own, strict=True):
                buffer[rows] = own.detach()[0, :, :trunk].transpose(0, 1)
            for gradient in (layer.d_keys, layer.d_values):
                gradient[rows] = 0

    def arrived(self, trunk: int) -> tuple[list[Tensor], list[Tensor]]:
        """The keys and values of the first `trunk` tokens of the pass just forwarded, with their graph, and the gradients that
        everything below has left for them."""
        rows = slice(self._past, self._past + trunk)
        outputs: list[Tensor] = []
        gradients: list[Tensor] = []
        for layer in self._layers.values():
            assert layer.own is not None
            for own, gradient in zip(layer.own, (layer.d_keys, layer.d_values), strict=True):
                if own.requires_grad:
                    outputs.append(own[0, :, :trunk].transpose(0, 1))
                    gradients.append(gradient[rows].to(own.dtype))
        return outputs, gradients


class _Above(torch.autograd.Function):
    """Keys or values of the path as they are; what comes back for them is added where they wait for it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, rows: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return rows.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arrived: Tensor) -> tuple[None, None, None]:
        ctx.gradient.add_(arrived)
        return None, None, None
