"""The flat order of a trie and the attention plan over it.

The trie is laid out in depth-first order, deepest child first. Then a whole chain of first children is one contiguous
run, and a single integer per token says what it is visible to:

    key k is visible to query q  ⇔  k ≤ q < subtree_end[k]

The plan covers exactly these pairs, each once, with few large blocks: one causal *square* per chain, and per branching
node one full *rectangle*: all its subtree outside its chain (queries) against the chain from its head to the end of
that node (keys). A branch therefore meets each chain above it in one block, however many nodes that chain has.

Example, the samples [1 2 3 4] and [1 2 5]: flat ids 1 2 3 4 5, positions 0 1 2 3 2, subtree_end 5 5 4 4 5,
squares (0, 4) and (4, 5), rectangle queries [4, 5) × keys [0, 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.samples import Ids
from trainer.tree.trie import Node, Trie

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Square:
    """A causal block: queries and keys are both [begin, end)."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A full block: every query of [q_begin, q_end) sees every key of [k_begin, k_end)."""

    q_begin: int
    q_end: int
    k_begin: int
    k_end: int


@dataclass(frozen=True, slots=True, eq=False)
class TreePlan:
    """One pack as the model sees it. The squares partition the T flat tokens."""

    ids: Ids  # int32[T], flat order
    position_ids: Longs  # int64[T], the depth of each token
    subtree_end: Longs  # int64[T]
    squares: tuple[Square, ...]
    rectangles: tuple[Rectangle, ...]

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs: the attention's share of the cost."""
        causal = sum((s.end - s.begin) * (s.end - s.begin + 1) // 2 for s in self.squares)
        return causal + sum((r.q_end - r.q_begin) * (r.k_end - r.k_begin) for r in self.rectangles)

    def mask(self) -> npt.NDArray[np.bool_]:
        """bool[T, T] (query, key), from `subtree_end` alone. T² memory: for the dense reference and for tests."""
        query, key = np.arange(self.tokens)[:, None], np.arange(self.tokens)[None, :]
        return (key <= query) & (query < self.subtree_end[None, :])


class FlatTree:
    """A trie with its flat order: the plan, and where each sequence lies in it."""

    __slots__ = ("_begin", "_trie", "plan")

    def __init__(self, sequences: Sequence[Ids]) -> None:
        self._trie = Trie(sequences)
        order, first_child = _depth_first(self._trie)
        self._begin = np.zeros(
            len(order), np.int64
        )  # flat position of each node's first token, by node index
        end = np.zeros(len(order), np.int64)  # flat end of each node's subtree, by node index
        flat = 0
        for node in order:
            self._begin[node.index] = flat
            flat += len(node.ids)
        for node in reversed(order):
            own = int(self._begin[node.index]) + len(node.ids)
            end[node.index] = max([own, *(int(end[c.index]) for c in node.children.values())])
        lengths = [len(node.ids) for node in order]
        squares, rectangles = _blocks(order, first_child, self._begin, end)
        self.plan = TreePlan(
            ids=np.concatenate([node.ids for node in order]),
            position_ids=np.concatenate([np.arange(node.start, node.end, dtype=np.int64) for node in order]),
            subtree_end=np.repeat(end[[node.index for node in order]], lengths),
            squares=squares,
            rectangles=rectangles,
        )

    def locate(self, ids: Ids, begin: int, end: int) -> Longs:
        """int64[end − begin]: the flat positions of tokens begin … end−1 of a sequence that the tree was built from."""
        runs = [
            np.arange(max(node.start, begin), min(node.end, end)) + (self._begin[node.index] - node.start)
            for node in self._trie.path(ids[:end])
            if node.end > begin
        ]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)


def _depth_first(trie: Trie) -> tuple[list[Node], dict[int, Node]]:
    """The nodes in depth-first order, deepest child first, and each inner node's first child by node index."""
    order: list[Node] = []
    stack = [trie.nodes[0]]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(node.children.values())
    deepest = [0] * len(order)
    for node in reversed(order):
        deepest[node.index] = max([node.end, *(deepest[c.index] for c in node.children.values())])
    order, first_child, stack = [], {}, [trie.nodes[0]]
    while stack:
        node = stack.pop()
        order.append(node)
        if node.children:
            children = sorted(node.children.values(), key=lambda child: deepest[child.index])
            first_child[node.index] = children[-1]
            stack.extend(children)
    return order, first_child


def _blocks(
    order: list[Node], first_child: dict[int, Node], begin: Longs, end: Longs
) -> tuple[tuple[Square, ...], tuple[Rectangle, ...]]:
    squares: list[Square] = []
    rectangles: list[Rectangle] = []
    inside = {
        child.index for index, child in first_child.items() if index != 0
    }  # continues its parent's chain
    for head in order[1:]:
        if head.index in inside:
            continue
        chain = [head]
        while chain[-1].index in first_child:
            chain.append(first_child[chain[-1].index])
        start = int(begin[head.index])
        squares.append(Square(start, int(end[chain[-1].index])))
        for node in chain[:-1]:
            branches = int(end[first_child[node.index].index])
            keys_end = int(begin[node.index]) + len(node.ids)
            rectangles.append(Rectangle(branches, int(end[node.index]), start, keys_end))
    return tuple(squares), tuple(rectangles)
