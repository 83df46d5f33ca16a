"""Keys and values of the running sequences.

An *arena* holds rows of one capacity: k [layers, rows, kv heads, capacity, key dim], v alike. A sequence owns one row
of one arena; rows are dense (0 … n−1), so that a decode step attends over a plain slice without gathering, and the
head dimension is innermost, so that the slice enters attention without a copy. Capacities double from 256, so padding
costs at most a factor of two; a sequence that outgrows its row moves to the next arena.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 256
FIRST_ROWS = 4


@dataclass(frozen=True, slots=True)
class KvShape:
    layers: int
    heads: int
    key_dim: int
    value_dim: int

    @property
    def bytes_per_token(self) -> int:
        return 4 * self.layers * self.heads * (self.key_dim + self.value_dim)


class Arena:
    """Rows of one capacity. Not zeroed on reuse: readers must mask what lies beyond a row's length.

    Memory starts as zeros and only ever holds computed values, so a masked position is finite and weighs 0."""

    __slots__ = ("capacity", "k", "rows", "shape", "v")

    def __init__(self, shape: KvShape, capacity: int) -> None:
        self.shape = shape
        self.capacity = capacity
        self.rows: list[KvRow] = []
        self.k, self.v = self._allocate(FIRST_ROWS)

    def _allocate(self, rows: int) -> tuple[Tensor, Tensor]:
        size = (self.shape.layers, rows, self.shape.heads, self.capacity)
        return torch.zeros(*size, self.shape.key_dim), torch.zeros(*size, self.shape.value_dim)

    def take(self) -> "KvRow":
        have = self.k.shape[1]
        if len(self.rows) == have:
            k, v = self._allocate(2 * have)
            k[:, :have], v[:, :have] = self.k, self.v
            self.k, self.v = k, v
        row = KvRow(self, len(self.rows))
        self.rows.append(row)
        return row

    def give_back(self, row: "KvRow") -> None:
        """Free `row`; the last row moves into the hole."""
        assert self.rows[row.index] is row
        last = self.rows.pop()
        if last is not row:
            self.k[:, row.index], self.v[:, row.index] = self.k[:, last.index], self.v[:, last.index]
            last.index = row.index
            self.rows[row.index] = last
        if not self.rows and self.k.shape[1] > FIRST_ROWS:
            self.k, self.v = self._allocate(FIRST_ROWS)


class KvRow:
    """The place of one sequence. `index` changes when rows are compacted: read it anew at every step."""

    __slots__ = ("arena", "index")

    def __init__(self, arena: Arena, index: int) -> None:
        self.arena = arena
        self.index = index

    @property
    def capacity(self) -> int:
        return self.arena.capacity

    def read(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Copies of positions start … end−1: [layers, kv heads, n, dim]."""
        k, v = self.arena.k[:, self.index, :, start:end], self.arena.v[:, self.index, :, start:end]
        return k.clone(memory_format=torch.contiguous_format), v.clone(memory_format=torch.contiguous_format)

    def write(self, start: int, k: Tensor, v: Tensor) -> None:
        end = start + k.shape[2]
        self.arena.k[:, self.index, :, start:end] = k
        self.arena.v[:, self.index, :, start:end] = v


class KvPool:
    """All arenas of one server. `held` = capacities of all live rows, in tokens (allocation may be up to twice that)."""

    def __init__(self, shape: KvShape, longest: int) -> None:
        self.shape = shape
        self.held = 0
        self.arenas: list[Arena] = []
        self._capacities = [longest]
        size = SMALLEST
        while size < longest:
            self._capacities.insert(-1, size)
            size *= 2

    def capacity_for(self, tokens: int) -> int:
        """The smallest row capacity that holds `tokens`."""
        return next(capacity for capacity in self._capacities if capacity >= tokens)

    def place(self, tokens: int) -> KvRow:
        capacity = self.capacity_for(tokens)
        arena = next((one for one in self.arenas if one.capacity == capacity), None)
        if arena is None:
            arena = Arena(self.shape, capacity)
            self.arenas.append(arena)
        self.held += capacity
        return arena.take()

    def release(self, row: KvRow) -> None:
        self.held -= row.capacity
        row.arena.give_back(row)

    def grow(self, row: KvRow, tokens: int, filled: int) -> KvRow:
        """Move the first `filled` positions of `row` to a row that holds `tokens`."""
        new = self.place(tokens)
        new.write(0, row.arena.k[:, row.index, :, :filled], row.arena.v[:, row.index, :, :filled])
        self.release(row)
        return new
