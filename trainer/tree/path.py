"""Keys and values of the path above a pass, and the gradients that arrive there from below.

One buffer per layer for each of keys, values, and their gradients, as long as the deepest path above a pass. A trunk writes its
part when it is forwarded. All passes below it read that part and add their gradients. The trunk's own backward pass takes the gradients.
Space beyond the open trunks is reused, so the memory is that of one path for trees of any size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@dataclass(slots=True, kw_only=True)
class _LayerCache:
    """[capacity, H_kv, D] each, so that a path is contiguous memory. Gradients are at least float32, because many passes may add to them."""

    keys: Tensor
    values: Tensor
    d_keys: Tensor
    d_values: Tensor
    # The current path, [1, H_kv, past, D]; its backward ends in d_keys and d_values.
    above: tuple[Tensor, Tensor] | None = None
    own: tuple[Tensor, Tensor] | None = None  # of the current pass, with their graph


class Path:
    """The path of the current pass. Attention layers pass it their own keys and values and get those of the past."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: tokens of the deepest path."""
        self._capacity = capacity
        self._layers: dict[nn.Module, _LayerCache] = {}
        self._past = 0
        self._with_graph = False

    def begin(self, past: int) -> None:
        """Start a pass that hangs below the first `past` tokens."""
        self._past, self._with_graph = past, torch.is_grad_enabled()
        for layer in self._layers.values():
            layer.above = layer.own = None

    def attended(self, module: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
        """Take a layer's own keys and values [1, H_kv, T, D]; return those of the path [1, H_kv, past, D], None if it is empty.

        Activation checkpointing calls it a second time in the backward pass and gets the same. Raises ValueError for reentrant
        checkpointing, which would cut the gradients between passes.
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
            layer = self._layers[module] = _LayerCache(
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
        """The path above the `own` keys or values. If only frozen weights made them, no gradient flows to the path."""
        rows = buffer[: self._past].transpose(0, 1)[None]
        if not own.requires_grad:
            return rows
        # Autograd runs no backward unless an input needs a gradient.
        anchor = buffer.new_empty(0, requires_grad=True)
        anchored: Tensor = _Above.apply(anchor, rows, gradient[: self._past].transpose(0, 1)[None])  # type: ignore[no-untyped-call]
        return anchored

    def extend(self, trunk: int) -> None:
        """Lengthen the path by the first `trunk` tokens of the pass just forwarded; their gradients start at 0."""
        rows = slice(self._past, self._past + trunk)
        for layer in self._layers.values():
            assert layer.own is not None
            for buffer, part in zip((layer.keys, layer.values), layer.own, strict=True):
                buffer[rows] = part.detach()[0, :, :trunk].transpose(0, 1)
            for gradient in (layer.d_keys, layer.d_values):
                gradient[rows] = 0

    def arrived(self, trunk: int) -> tuple[list[Tensor], list[Tensor]]:
        """The keys and values of the first `trunk` tokens of the pass just forwarded, with their graph, and the gradients that
        all passes below have added for them."""
        rows = slice(self._past, self._past + trunk)
        outputs: list[Tensor] = []
        gradients: list[Tensor] = []
        for layer in self._layers.values():
            assert layer.own is not None
            for part, gradient in zip(layer.own, (layer.d_keys, layer.d_values), strict=True):
                if part.requires_grad:
                    outputs.append(part[0, :, :trunk].transpose(0, 1))
                    gradients.append(gradient[rows].to(part.dtype))
        return outputs, gradients


class _Above(torch.autograd.Function):
    """The identity on keys or values of the path; its backward adds their gradient to the path's buffer."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, rows: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return rows.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arrived: Tensor) -> tuple[None, None, None]:
        ctx.gradient.add_(arrived)
        return None, None, None
