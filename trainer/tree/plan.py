"""The flat order of a trie and the attention plan over it.

The trie is laid out in depth-first order, deepest child first (among equally deep children the smallest first token first). Then a
whole chain of first children is one contiguous run, and a single integer per token defines which queries see it:

    key k is visible to query q  ⇔  k ≤ q < subtree_end[k]

The plan covers exactly these pairs, each once, with few large blocks: one causal *square* per chain, and per branching
node one full *rectangle*: its subtree outside its chain (queries) against the chain from its head to the end of
that node (keys). A branch therefore meets each chain above it in one block, independent of the chain's number of nodes.

Example, the samples [1 2 3 4] and [1 2 5]: flat ids 1 2 3 4 5, positions 0 1 2 3 2, subtree_end 5 5 4 4 5,
squares (0, 4) and (4, 5), rectangle queries [4, 5) × keys [0, 2).

If routes were recorded, tokens are merged only with tokens of the same routes (trie.py), and the plan carries the routes.

The plan is a function of the set of sequences alone: their order and their storage do not change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.routes import Routes
from orchestrator.trajectory.trie import Node, Trie
from trainer.samples import Ids

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TreePlan:
    """T flat tokens as the model sees them: a tree, or a part of a tree below a path of `past` tokens that all of them see.

    The squares partition the tokens. The path is not among them: its keys and values come from elsewhere (path.py).
    """

    ids: Ids  # int32[T], flat order
    position_ids: Longs  # int64[T], the depth of each token
    subtree_end: Longs  # int64[T]
    squares: Longs  # int64[S, 2]: queries and keys are both [begin, end), causal
    rectangles: Longs  # int64[R, 4]: queries [begin, end) see all keys [begin, end)
    past: int = 0
    routes: Routes | None = None  # int16[T, layers, top_k] to replay (replay.py); None: every router chooses

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs: the attention's share of the cost. A token sees itself and all tokens above it."""
        return int(self.position_ids.sum()) + self.tokens

    def mask(self) -> npt.NDArray[np.bool_]:
        """bool[T, T] (query, key), from `subtree_end` alone. T² memory: for the dense reference and for tests."""
        query, key = np.arange(self.tokens)[:, None], np.arange(self.tokens)[None, :]
        return (key <= query) & (query < self.subtree_end[None, :])

    def part(self, ranges: Sequence[tuple[int, int]], past: int) -> TreePlan:
        """The plan of some of the tokens: ascending flat ranges whose tokens all hang below the same path of `past` tokens.

        Dropping the tokens between two ranges removes blocks of the whole plan, but never a pair of two remaining tokens.
        """
        rows = np.concatenate([np.arange(begin, end) for begin, end in ranges])
        squares, rectangles = (np.searchsorted(rows, blocks) for blocks in (self.squares, self.rectangles))
        return TreePlan(
            ids=self.ids[rows],
            position_ids=self.position_ids[rows],
            subtree_end=np.searchsorted(rows, self.subtree_end[rows]),
            squares=squares[squares[:, 0] < squares[:, 1]],
            rectangles=rectangles[
                (rectangles[:, 0] < rectangles[:, 1]) & (rectangles[:, 2] < rectangles[:, 3])
            ],
            past=past,
            routes=None if self.routes is None else self.routes[rows],
        )


class FlatTree:
    """A trie with its flat order: the plan, and where each branch and each node lies in it."""

    __slots__ = ("_trie", "begin", "children", "end", "plan")

    def __init__(self, branches: Sequence[Branch]) -> None:
        self._trie = Trie(branches)
        order, self.children = _depth_first(self._trie)
        self.begin = np.zeros(len(order), np.int64)  # flat position of each node's first token, by node index
        self.end = np.zeros(len(order), np.int64)  # flat end of each node's subtree, by node index
        flat = 0
        for node in order:
            self.begin[node.index] = flat
            flat += len(node.ids)
        for node in reversed(order):
            children = self.children[node.index]
            own_end = self.begin[node.index] + len(node.ids)
            self.end[node.index] = self.end[children[-1].index] if children else own_end
        squares, rectangles = self._blocks(order)
        lengths = [len(node.ids) for node in order]
        starts = np.repeat([node.start for node in order], lengths) - np.repeat(
            self.begin[[node.index for node in order]], lengths
        )
        self.plan = TreePlan(
            ids=np.concatenate([node.ids for node in order]),
            position_ids=np.arange(flat) + starts,
            subtree_end=np.repeat(self.end[[node.index for node in order]], lengths),
            squares=np.array(squares, np.int64).reshape(-1, 2),
            rectangles=np.array(rectangles, np.int64).reshape(-1, 4),
            routes=_routes(order),
        )

    @property
    def route_conflicts(self) -> int:
        """How often equal tokens after one prefix are not merged because other experts computed them."""
        return self._trie.route_conflicts

    def locate(self, branch: Branch, begin: int, end: int) -> Longs:
        """int64[end − begin]: the flat positions of tokens begin … end−1 of a branch that the tree was built from."""
        runs = [
            np.arange(max(node.start, begin), min(node.end, end)) + (self.begin[node.index] - node.start)
            for node in self._trie.runs(branch, begin, end)
        ]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)

    def _blocks(self, order: list[Node]) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]]]:
        squares: list[tuple[int, int]] = []
        rectangles: list[tuple[int, int, int, int]] = []
        begin, end = self.begin.tolist(), self.end.tolist()
        inside = {nodes[0].index for nodes in self.children[1:] if nodes}  # continues its parent's chain
        for head in order[1:]:
            if head.index in inside:
                continue
            start, node = begin[head.index], head
            while nodes := self.children[node.index]:
                branches = end[nodes[0].index]
                if branches < end[node.index]:
                    keys_end = begin[node.index] + len(node.ids)
                    rectangles.append((branches, end[node.index], start, keys_end))
                node = nodes[0]
            squares.append((start, end[node.index]))
        return squares, rectangles


def _routes(order: Sequence[Node]) -> Routes | None:
    found = [node.routes for node in order if node.routes is not None]
    return np.concatenate(found) if found else None


def _depth_first(trie: Trie) -> tuple[list[Node], list[list[Node]]]:
    """The nodes in depth-first order, deepest child first, and each node's children in that order, by node index."""
    order: list[Node] = []
    stack = [trie.nodes[0]]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(node.children.values())
    deepest = [0] * len(order)
    for node in reversed(order):
        deepest[node.index] = max([node.end, *(deepest[c.index] for c in node.children.values())])
    children: list[list[Node]] = [[] for _ in order]
    order, stack = [], [trie.nodes[0]]
    while stack:
        node = stack.pop()
        order.append(node)
        if node.children:
            ranked = sorted((-deepest[child.index], key) for key, child in node.children.items())
            children[node.index] = [node.children[key] for _, key in ranked]
            stack.extend(reversed(children[node.index]))
    return order, children
