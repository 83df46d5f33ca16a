"""Keys and values of the path above a pass, and the gradients that arrive there from below.

One buffer per layer for each of keys, values, and their gradients, as long as the deepest path on which a pass hangs. A trunk writes its
stretch when it is forwarded, everything that hangs on it reads it and adds its gradients, and the trunk's own backward pass takes them.
What lies behind the open trunks is free again, so the memory is that of one path whatever the tree's size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class _Layer:
    """[capacity, H_kv, D] each, so that a path is one piece of memory. Autograd stops at `leaves`, views of the present path."""

    keys: Tensor
    values: Tensor
    d_keys: Tensor
    d_values: Tensor
    leaves: tuple[Tensor, Tensor] | None = None
    own: tuple[Tensor, Tensor] | None = None  # of the present pass, with their graph


class Path:
    """The path of the pass that is forwarded. Attention layers ask it for the `past` and leave their own keys and values."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: tokens of the deepest path."""
        self._capacity = capacity
        self._layers: dict[nn.Module, _Layer] = {}
        self._past = 0

    def begin(self, past: int) -> None:
        """From now on a pass is forwarded that hangs below the first `past` tokens."""
        self._past = past
        for layer in self._layers.values():
            layer.leaves = layer.own = None

    def attended(self, module: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
        """Take a layer's own keys and values [1, H_kv, T, D]; return those of the path [1, H_kv, past, D], None if it is empty.

        Activation checkpointing calls it a second time in the backward pass and gets the same.
        """
        if not self._capacity:
            return None
        layer = self._layers.get(module)
        if layer is None:
            layer = self._layers[module] = _Layer(
                self._buffer(key), self._buffer(value), self._buffer(key), self._buffer(value)
            )
        if layer.own is None:
            layer.own = key, value
        if layer.leaves is None and self._past:
            layer.leaves = (
                self._leaf(layer.keys, layer.d_keys),
                self._leaf(layer.values, layer.d_values),
            )
        if layer.leaves is None:
            return None
        keys, values = (leaf.transpose(0, 1)[None] for leaf in layer.leaves)
        return keys, values

    def _buffer(self, like: Tensor) -> Tensor:
        return like.new_zeros(self._capacity, like.shape[1], like.shape[3])

    def _leaf(self, buffer: Tensor, gradient: Tensor) -> Tensor:
        leaf = buffer[: self._past].detach()
        if torch.is_grad_enabled():
            leaf.requires_grad_()
            leaf.grad = gradient[: self._past]  # autograd adds to it in place
        return leaf

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
                    gradients.append(gradient[rows])
        return outputs, gradients
