"""A compressed trie over the branches of step trees.

Each node holds a run of tokens; two children of one node differ in their first token. Samples that are equal, that are
prefixes of others or that end inside a node need no node of their own.

A branch is put where its parent lies: only its own tokens are compared, so building costs the stored tokens, not the expanded ones.
Branches without a parent (plain sequences) start at the root.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from orchestrator.contracts.branch import Branch
from trainer.samples import Ids


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens: ids[k] stands at depth start + k. `index` is the place in Trie.nodes."""

    index: int
    start: int
    ids: Ids
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)  # by the child's first token

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class Trie:
    """The compressed trie of `branches`. nodes[0] is the root, which holds no token.

    It holds their prefixes and no others: what a parent has beyond the tokens that are kept of it is not in the trie, unless it is
    among `branches` itself. Every node but the root holds at least one token. A node may have a single child, where a
    sequence was continued.
    """

    __slots__ = ("_end", "nodes")

    def __init__(self, branches: Iterable[Branch]) -> None:
        self.nodes = [Node(0, 0, np.empty(0, np.int32), None)]
        self._end: dict[
            Branch, Node
        ] = {}  # the node in which the needed part of a branch ended when it was put in
        for branch, needed in _parents_first(branches):
            kept = min(branch.keep_len, needed)
            start = self.nodes[0] if branch.parent is None else _holding(self._end[branch.parent], kept)
            self._end[branch] = self._insert(start, kept, branch.own[: needed - kept])

    def _insert(self, node: Node, depth: int, ids: Ids) -> Node:
        """Put `ids` behind depth `depth`, which lies in `node` or at its end; return the node in which they end."""
        done = 0
        while done < len(ids):
            shared = common_prefix(node.ids[depth - node.start :], ids[done:])
            done, depth = done + shared, depth + shared
            if done == len(ids):
                break
            if depth < node.end:
                node = self._split(node, depth)
            child = node.children.get(int(ids[done]))
            if child is None:
                child = self._add(depth, ids[done:], node)
                done = len(ids)
            node = child
        return node

    def _split(self, node: Node, depth: int) -> Node:
        """Cut a node at `depth` and return its new head. The tail stays the same object: what ended behind `depth` still does."""
        assert node.parent is not None
        head = self._add(node.start, node.ids[: depth - node.start], node.parent)
        node.ids, node.start, node.parent = node.ids[depth - node.start :], depth, head
        head.children[int(node.ids[0])] = node
        return head

    def _add(self, start: int, ids: Ids, parent: Node) -> Node:
        node = Node(len(self.nodes), start, ids, parent)
        self.nodes.append(node)
        parent.children[int(ids[0])] = node
        return node

    @property
    def tokens(self) -> int:
        """Unique tokens: the number of distinct non-empty prefixes of the branches."""
        return sum(len(node.ids) for node in self.nodes)

    def runs(self, branch: Branch, begin: int, end: int) -> list[Node]:
        """The nodes that hold tokens begin … end−1 of one of the trie's branches, in order; none if begin = end."""
        node = _holding(self._end[branch], end)
        found: list[Node] = []
        while node.parent is not None and node.end > begin:
            found.append(node)
            node = node.parent
        return found[::-1] if end > begin else []


def _parents_first(branches: Iterable[Branch]) -> list[tuple[Branch, int]]:
    """The branches and all above them, parents first, each with the number of its leading tokens that any of `branches` needs."""
    needed: dict[Branch, int] = {}
    order: list[Branch] = []
    for branch in branches:
        met: list[Branch] = []
        above: Branch | None = branch
        need = len(branch)
        while above is not None and needed.get(above, -1) < need:  # who needs less has been here with more
            if above not in needed:
                met.append(above)
            needed[above] = need
            need, above = min(need, above.keep_len), above.parent
        order.extend(reversed(met))
    return [(branch, needed[branch]) for branch in order]


def _holding(node: Node, depth: int) -> Node:
    """The node on the path to `node` that holds the last of the first `depth` tokens; the root for 0."""
    while node.start >= depth and node.parent is not None:
        node = node.parent
    return node


def common_prefix(a: Ids, b: Ids) -> int:
    """The number of leading tokens that a and b share."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
