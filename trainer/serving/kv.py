"""Keys and values of the running sequences, and for a mixture of experts the experts of each token.

An *arena* holds rows of one capacity: k [layers, rows, kv heads, capacity, key dim], v alike, and int16 routes
[layers, rows, 1, capacity, top_k] if the model has experts: a cached prefix keeps its routes. A sequence owns one row
of one arena; rows are dense (0 … n−1), so that a decode step attends over a plain slice without gathering, and the
head dimension is innermost, so that the slice enters attention without a copy. Capacities double from 256, so padding
costs at most a factor of two; a sequence that outgrows its row moves to the next arena.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MIN_ROWS = 256
FIRST_TOKENS = 1024  # of a new arena of small rows; one of large rows begins with one row

Piece = tuple[Tensor, ...]
"""The tensors of some tokens of one row, position in dimension 2: k [layers, kv heads, n, key dim], v alike, routes [layers, 1, n, top_k]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    layers: int
    heads: int
    key_dim: int
    value_dim: int
    top_k: int = 0  # experts per token and layer; 0: a dense model

    @property
    def bytes_per_token(self) -> int:
        return self.layers * (4 * self.heads * (self.key_dim + self.value_dim) + 2 * self.top_k)


class Arena:
    """Rows of one capacity. Not zeroed on reuse: readers must mask positions beyond a row's length.

    Memory starts as zeros and only ever holds computed values, so a masked position is finite and weighs 0."""

    __slots__ = ("capacity", "planes", "rows", "shape")

    def __init__(self, shape: KvShape, capacity: int) -> None:
        self.shape = shape
        self.capacity = capacity
        self.rows: list[KvRow] = []
        self.planes = self._allocate(max(1, FIRST_TOKENS // capacity))

    @property
    def allocated(self) -> int:
        """Tokens for which it holds memory."""
        return self.k.shape[1] * self.capacity

    @property
    def k(self) -> Tensor:
        return self.planes[0]

    @property
    def v(self) -> Tensor:
        return self.planes[1]

    @property
    def routes(self) -> Tensor:
        """The routes; only for a mixture of experts."""
        return self.planes[2]

    def _allocate(self, rows: int) -> Piece:
        shape = self.shape
        size = (shape.layers, rows, shape.heads, self.capacity)
        keys, values = torch.zeros(*size, shape.key_dim), torch.zeros(*size, shape.value_dim)
        if not shape.top_k:
            return keys, values
        routes = torch.zeros(shape.layers, rows, 1, self.capacity, shape.top_k, dtype=torch.int16)
        return keys, values, routes

    def take(self) -> "KvRow":
        if len(self.rows) == self.k.shape[1]:
            self._resize(2 * len(self.rows))
        row = KvRow(self, len(self.rows))
        self.rows.append(row)
        return row

    def give_back(self, row: "KvRow") -> None:
        """Free `row`; the last row moves into the hole."""
        assert self.rows[row.index] is row
        last_row = self.rows.pop()
        if last_row is not row:
            for plane in self.planes:
                plane[:, row.index] = plane[:, last_row.index]
            last_row.index = row.index
            self.rows[row.index] = last_row

    def fit(self) -> None:
        """Free memory that no row needs: room for fewer than twice the rows stays."""
        enough = 1 << (len(self.rows) - 1).bit_length()
        if enough < self.k.shape[1]:
            self._resize(enough)

    def _resize(self, rows: int) -> None:
        planes, used = self._allocate(rows), len(self.rows)
        for new, old in zip(planes, self.planes, strict=True):
            new[:, :used] = old[:, :used]
        self.planes = planes


class KvRow:
    """The place of one sequence. `index` changes when rows are compacted: read it again at every step."""

    __slots__ = ("arena", "index")

    def __init__(self, arena: Arena, index: int) -> None:
        self.arena = arena
        self.index = index

    @property
    def capacity(self) -> int:
        return self.arena.capacity

    def view(self, start: int, end: int) -> Piece:
        """Positions start … end−1, in place."""
        return tuple(plane[:, self.index, :, start:end] for plane in self.arena.planes)

    def read(self, start: int, end: int) -> Piece:
        """Copies of positions start … end−1."""
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in self.view(start, end))

    def write(self, start: int, piece: Piece) -> None:
        for target, part in zip(self.view(start, start + piece[0].shape[2]), piece, strict=True):
            target.copy_(part)


class KvPool:
    """All arenas of one server. `longest`: tokens of the longest sequence. `held`: capacities of all live rows, in tokens; the caller keeps it within
    `budget`. A sequence is placed only where all arenas then have memory for at most twice `budget` tokens; while an arena grows or shrinks, both
    copies exist."""

    def __init__(self, shape: KvShape, longest: int, budget: int) -> None:
        self.shape = shape
        self.budget = budget
        self.held = 0
        self.arenas: list[Arena] = []
        self._capacities = [longest]
        size = MIN_ROWS
        while size < longest:
            self._capacities.insert(-1, size)
            size *= 2

    def capacity_for(self, tokens: int) -> int:
        """The smallest row capacity that holds `tokens`."""
        return next(capacity for capacity in self._capacities if capacity >= tokens)

    def place(self, tokens: int) -> KvRow:
        capacity = self.capacity_for(tokens)
        arena = next((candidate for candidate in self.arenas if candidate.capacity == capacity), None)
        if arena is None:
            arena = Arena(self.shape, capacity)
            self.arenas.append(arena)
        self.held += capacity
        row = arena.take()
        if sum(each.allocated for each in self.arenas) > 2 * self.budget:
            for each in self.arenas:
                each.fit()
        return row

    def release(self, row: KvRow) -> None:
        self.held -= row.capacity
        row.arena.give_back(row)
        if not row.arena.rows:
            self.arenas.remove(row.arena)

    def grow(self, row: KvRow, tokens: int, filled: int) -> KvRow:
        """Move the first `filled` positions of `row` to a row that holds `tokens`."""
        new = self.place(tokens)
        new.write(0, row.view(0, filled))
        self.release(row)
        return new
