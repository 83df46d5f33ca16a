"""A compressed trie over the branches of step trees.

Each node holds a run of tokens. Two children of one node differ in their first token, or in the experts that computed it. Samples that
are equal, are prefixes of others, or end inside a node need no node of their own.

A branch is inserted at its parent's position. Only its own tokens are compared, so building costs the stored tokens, not the expanded tokens.
Branches without a parent (plain sequences) start at the root.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from orchestrator.contracts.ids import Ids
from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.common_prefix import common_prefix
from orchestrator.trajectory.routes import Routes, unrecorded

Key = tuple[int, bytes]  # a token and its routes; no bytes if none of the branches has routes


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A run of tokens: ids[k] is at depth start + k. `index` is the position in Trie.nodes. `parent` is an index too: nodes that
    knew each other would be held, with their ids and routes, until a garbage collection."""

    index: int
    start: int
    ids: Ids
    routes: Routes | None  # of the ids; None if none of the trie's branches has routes
    parent: int | None
    children: dict[Key, Node] = field(default_factory=dict)  # by the child's first token

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class Trie:
    """The compressed trie of `branches`. nodes[0] is the root, which holds no token.

    The trie holds their prefixes and no others. Tokens of a parent that no branch keeps are not in the trie, unless the parent is
    among `branches` itself. Every node but the root holds at least one token. A node may have a single child if a
    sequence was continued. Tokens are equal only if their routes are equal; a recorded route differs from a missing route.
    """

    __slots__ = ("_end", "nodes")

    def __init__(self, branches: Iterable[Branch]) -> None:
        ordered = _parents_first(branches)
        template = next((branch.routes for branch, _ in ordered if branch.routes is not None), None)
        no_routes = None if template is None else template[:0]
        self.nodes = [Node(index=0, start=0, ids=np.empty(0, np.int32), routes=no_routes, parent=None)]
        self._end: dict[Branch, Node] = {}  # the node in which the needed part of a branch ended at insertion
        for branch, needed in ordered:
            keep_len = min(branch.keep_len, needed)
            start = (
                self.nodes[0] if branch.parent is None else self._holding(self._end[branch.parent], keep_len)
            )
            ids = branch.own[: needed - keep_len]
            routes = branch.routes
            if template is not None:
                routes = unrecorded(len(ids), template) if routes is None else routes[: len(ids)]
            self._end[branch] = self._insert(start, keep_len, ids, routes)

    def _insert(self, node: Node, depth: int, ids: Ids, routes: Routes | None) -> Node:
        """Insert `ids` behind depth `depth`, which is inside `node` or at its end. Return the node in which they end."""
        inserted = 0
        while inserted < len(ids):
            shared = common_prefix(node.ids[depth - node.start :], ids[inserted:])
            if routes is not None and node.routes is not None:
                shared = _agree(node.routes[depth - node.start :], routes[inserted:], shared)
            inserted, depth = inserted + shared, depth + shared
            if inserted == len(ids):
                break
            if depth < node.end:
                node = self._split(node, depth)
            child = node.children.get(_key(ids, routes, inserted))
            if child is None:
                child = self._add(depth, ids[inserted:], None if routes is None else routes[inserted:], node)
                inserted = len(ids)
            node = child
        return node

    def _split(self, node: Node, depth: int) -> Node:
        """Cut a node at `depth` and return its new head. The tail stays the same object, so branches that end behind `depth` still end in it."""
        assert node.parent is not None
        offset = depth - node.start
        routes = node.routes
        head = self._add(
            node.start,
            node.ids[:offset],
            None if routes is None else routes[:offset],
            self.nodes[node.parent],
        )
        node.routes = None if routes is None else routes[offset:]
        node.ids, node.start, node.parent = node.ids[offset:], depth, head.index
        head.children[_key(node.ids, node.routes, 0)] = node
        return head

    def _add(self, start: int, ids: Ids, routes: Routes | None, parent: Node) -> Node:
        node = Node(index=len(self.nodes), start=start, ids=ids, routes=routes, parent=parent.index)
        self.nodes.append(node)
        parent.children[_key(ids, routes, 0)] = node
        return node

    def cut(self, branch: Branch) -> Node:
        """The node that ends at the end of `branch`. If the branch ends inside a node, that node is cut there first."""
        node = self._holding(self._end[branch], len(branch))
        return node if node.end == len(branch) or node.parent is None else self._split(node, len(branch))

    def _holding(self, node: Node, depth: int) -> Node:
        """The node on the path to `node` that holds the last of the first `depth` tokens; the root for 0."""
        while node.start >= depth and node.parent is not None:
            node = self.nodes[node.parent]
        return node

    @property
    def tokens(self) -> int:
        """Unique tokens: the number of distinct non-empty prefixes of the branches."""
        return sum(len(node.ids) for node in self.nodes)

    @property
    def route_conflicts(self) -> int:
        """How often equal tokens behind one prefix are not merged because different experts computed them."""
        return sum(len(node.children) - len({token for token, _ in node.children}) for node in self.nodes)

    def runs(self, branch: Branch, begin: int, end: int) -> list[Node]:
        """The nodes that hold tokens begin … end−1 of one of the trie's branches, in order; none if begin = end."""
        node = self._holding(self._end[branch], end)
        found: list[Node] = []
        while node.parent is not None and node.end > begin:
            found.append(node)
            node = self.nodes[node.parent]
        return found[::-1] if end > begin else []


def _parents_first(branches: Iterable[Branch]) -> list[tuple[Branch, int]]:
    """The branches and all their ancestors, parents first, each with the number of its leading tokens that any of `branches` needs."""
    needed: dict[Branch, int] = {}
    order: list[Branch] = []
    for branch in branches:
        unvisited: list[Branch] = []
        ancestor: Branch | None = branch
        need = len(branch)
        # Otherwise an earlier branch needed at least as much.
        while ancestor is not None and needed.get(ancestor, -1) < need:
            if ancestor not in needed:
                unvisited.append(ancestor)
            needed[ancestor] = need
            need, ancestor = min(need, ancestor.keep_len), ancestor.parent
        order.extend(reversed(unvisited))
    return [(branch, needed[branch]) for branch in order]


def _key(ids: Ids, routes: Routes | None, at: int) -> Key:
    return int(ids[at]), b"" if routes is None else routes[at].tobytes()


def _agree(a: Routes, b: Routes, n: int) -> int:
    """The number of leading tokens, of the first `n`, whose routes are the same."""
    differs = (a[:n] != b[:n]).any((1, 2))
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
