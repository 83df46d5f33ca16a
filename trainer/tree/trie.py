"""A compressed trie over token sequences.

Each node holds a run of tokens; two children of one node differ in their first token. Sequences that are equal, that
are prefixes of others or that end inside a node need no node of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from trainer.samples import Ids


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens: ids[k] stands at depth start + k. `index` is the place in Trie.nodes."""

    index: int
    start: int
    ids: Ids
    children: dict[int, "Node"] = field(default_factory=dict)  # by the child's first token

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class Trie:
    """The compressed trie of `sequences`. nodes[0] is the root, which holds no token.

    Invariant: every node but the root holds at least one token, and every inner node but the root has at least two
    children (a run is never longer cut than needed).
    """

    __slots__ = ("nodes",)

    def __init__(self, sequences: Sequence[Ids]) -> None:
        self.nodes = [Node(0, 0, np.empty(0, np.int32))]
        # Longest first: then a later sequence never runs past a leaf, so no leaf is ever extended.
        for ids in sorted(sequences, key=len, reverse=True):
            self._insert(ids)

    def _insert(self, ids: Ids) -> None:
        node, depth = self.nodes[0], 0
        while depth < len(ids):
            child = node.children.get(int(ids[depth]))
            if child is None:
                node.children[int(ids[depth])] = self._add(depth, ids[depth:])
                return
            shared = common_prefix(child.ids, ids[depth:])
            depth += shared
            if shared < len(child.ids):
                if depth == len(ids):
                    return  # ends inside the node
                self._split(child, shared)
            node = child

    def _split(self, node: Node, at: int) -> None:
        tail = self._add(node.start + at, node.ids[at:])
        tail.children = node.children
        node.ids = node.ids[:at]
        node.children = {int(tail.ids[0]): tail}

    def _add(self, start: int, ids: Ids) -> Node:
        node = Node(len(self.nodes), start, ids)
        self.nodes.append(node)
        return node

    @property
    def tokens(self) -> int:
        """Unique tokens: the number of distinct non-empty prefixes of the sequences."""
        return sum(len(node.ids) for node in self.nodes)

    def path(self, ids: Ids) -> Iterator[Node]:
        """The nodes that a sequence of this trie runs through, from the root's child on; it may end inside the last."""
        node = self.nodes[0]
        while node.end < len(ids):
            node = node.children[int(ids[node.end])]
            yield node


def common_prefix(a: Ids, b: Ids) -> int:
    """The number of leading tokens that a and b share."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def merged_tokens(sequences: Sequence[Ids]) -> int:
    """Unique tokens of `sequences` without building a trie: Σ length − Σ common prefix of neighbours in sorted order.

    Example: [1 2 3], [1 2 4], [1 2] → 8 − (2 + 2) = 4.
    """
    ordered = sorted(sequences, key=lambda ids: ids.astype(">i4").tobytes())
    shared = sum(common_prefix(a, b) for a, b in pairwise(ordered))
    return sum(map(len, sequences)) - shared
