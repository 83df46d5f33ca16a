"""Keys and values of finished prompts and completions, looked up by their token ids.

A radix tree: every node owns the keys and values of its edge, a run of tokens. A lookup walks down as far as the ids
agree and returns views. The engine copies them into the row of a new sequence, so nothing here is pinned and
eviction (least recently used leaf first) is always safe. Keys and values depend on the weights: the engine clears the
tree when the weights change. No node knows its parent, so what is cleared is freed at once, without a garbage collection.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from orchestrator.trajectory.common_prefix import common_prefix
from trainer.serving.kv import Piece

Ids = NDArray[np.int32]


@dataclass(slots=True, eq=False, kw_only=True)
class _Node:
    ids: Ids
    piece: Piece
    used: int
    children: dict[int, "_Node"] = field(default_factory=dict)


class PrefixCache:
    """`tokens` = tokens whose keys and values are owned here. One tree per namespace."""

    def __init__(self) -> None:
        self.tokens = 0
        self._clock = 0
        self._roots: dict[str, dict[int, _Node]] = {}

    def match(self, ids: Ids, namespace: str) -> tuple[int, list[Piece]]:
        """The longest cached prefix of `ids`: its length and its keys and values, piece by piece."""
        self._clock += 1
        children = self._roots.get(namespace, {})
        at, pieces = 0, list[Piece]()
        while at < len(ids):
            node = children.get(int(ids[at]))
            if node is None:
                break
            shared = common_prefix(node.ids, ids[at:])
            node.used = self._clock
            pieces.append(tuple(part[:, :, :shared] for part in node.piece))
            at += shared
            if shared < len(node.ids):
                break
            children = node.children
        return at, pieces

    def insert(self, ids: Ids, namespace: str, read: Callable[[int, int], Piece]) -> None:
        """Own the prefix `ids`; `read(start, end)` copies keys and values and is called for the new part only."""
        self._clock += 1
        children = self._roots.setdefault(namespace, {})
        at = 0
        while at < len(ids):
            node = children.get(int(ids[at]))
            if node is None:
                children[int(ids[at])] = _Node(
                    ids=ids[at:].copy(), piece=read(at, len(ids)), used=self._clock
                )
                self.tokens += len(ids) - at
                return
            node.used = self._clock
            shared = common_prefix(node.ids, ids[at:])
            at += shared
            if shared < len(node.ids):
                if at == len(ids):
                    return
                node = self._split(node, shared, children)
            children = node.children

    def _split(self, node: _Node, at: int, siblings: dict[int, _Node]) -> _Node:
        """Cut `node` after `at` tokens; returns the upper half, whose only child is the lower one."""
        head = tuple(part[:, :, :at].clone() for part in node.piece)
        upper = _Node(ids=node.ids[:at].copy(), piece=head, used=node.used)
        siblings[int(upper.ids[0])] = upper
        node.ids = node.ids[at:].copy()
        node.piece = tuple(part[:, :, at:].clone() for part in node.piece)
        upper.children[int(node.ids[0])] = node
        return upper

    def evict(self, keep: int) -> None:
        """Drop least recently used leaves until at most `keep` tokens are owned."""
        while self.tokens > max(keep, 0):
            leaves = sorted(self._leaves(), key=lambda leaf: leaf[0].used)
            for node, siblings in leaves:
                self.tokens -= len(node.ids)
                del siblings[int(node.ids[0])]
                if self.tokens <= keep:
                    return

    def clear(self) -> None:
        self._roots.clear()
        self.tokens = 0

    def _leaves(self) -> list[tuple[_Node, dict[int, _Node]]]:
        """Every leaf, with the children of its parent."""
        stack = list(self._roots.values())
        leaves = []
        while stack:
            siblings = stack.pop()
            for node in siblings.values():
                if node.children:
                    stack.append(node.children)
                else:
                    leaves.append((node, siblings))
        return leaves
