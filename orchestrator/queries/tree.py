"""The prefix tree of a batch, as stored: the tokens that its samples share, and how much work the sharing saves.

A sample is one recorded completion (state and action) that trains. The tree is a compressed trie of all samples: each node is a run of tokens,
`count` the number of samples that pass through it. It is cut where samples part and where one ends, so

    naive  = Σ length · count      tokens that training every sample on its own would forward
    unique = Σ length              tokens that are forwarded once they are merged

The trainer merges in the same tree, train step by train step and within packs that fit its memory: these numbers are the upper bound of its
own, which are in the metrics of each train step. Samples that routing replay keeps apart are merged here.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.trie import Node, Trie

DRAWN = 1_500
"""Nodes in a drawing by default: further ones are thinner than a pixel."""
HEAD_TOKENS = 24
"""Token ids that are shown of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One branch of the tree and its origin."""

    tokens: Branch
    group_id: int
    rollout_id: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNode:
    """A run of `length` tokens from depth `start` on, shared by `count` samples. `parent`: its index in the list, None at depth 0. `head`:
    its first ids. `groups`, `rollouts`: how many different ones pass through; `group_id`, `rollout_id`, `step`: one of them. `below`:
    tokens of its whole subtree, itself included, counted once."""

    parent: int | None
    start: int
    length: int
    count: int
    groups: int
    rollouts: int
    below: int
    group_id: int
    rollout_id: int
    step: int
    head: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """The tree, its `nodes` parents first; `left_out`: the nodes that are too small to be drawn, and their tokens."""

    samples: int
    naive: int
    unique: int
    depth: int
    nodes: list[DrawnNode]
    left_out: int
    left_out_tokens: int

    @property
    def ratio(self) -> float:
        """The factor by which merging reduces the forwarded tokens: naive / unique."""
        return self.naive / self.unique if self.unique else 1.0


def prefix_tree(samples: Sequence[Sample], *, drawn: int = DRAWN) -> PrefixTree:
    """The tree of `samples`, with its `drawn` largest nodes. Costs the stored tokens, not the expanded ones.

    >>> import numpy as np
    >>> tokens = lambda *ids: Branch(own=np.array(ids, np.int32))
    >>> first = Sample(tokens=tokens(1, 2, 3, 4), group_id=1, rollout_id=1, step=0)
    >>> second = Sample(tokens=tokens(1, 2, 5), group_id=1, rollout_id=2, step=0)
    >>> tree = prefix_tree([first, second])
    >>> tree.naive, tree.unique, [(node.start, node.length, node.count) for node in tree.nodes]
    (7, 5, [(0, 2, 2), (2, 2, 1), (2, 1, 1)])
    """
    by_branch: dict[Branch, list[Sample]] = {}
    for sample in samples:
        by_branch.setdefault(sample.tokens, []).append(sample)
    trie = Trie(by_branch)
    ends: dict[Node, list[Sample]] = {}
    for branch, branch_samples in by_branch.items():
        ends.setdefault(trie.cut(branch), []).extend(branch_samples)
    return _summarize(trie, ends, len(samples), drawn)


@dataclass(slots=True, kw_only=True)
class _Sum:
    """Totals of the samples that pass through a node."""

    count: int
    groups: set[int]
    rollouts: set[int]
    below: int
    one: Sample


def _summarize(trie: Trie, ends: Mapping[Node, Sequence[Sample]], samples: int, drawn: int) -> PrefixTree:
    root = trie.nodes[0]
    order = [root]
    for node in order:
        order.extend(node.children.values())
    sums = _sums(order, ends)
    nodes = _drawn(root, sums, drawn)
    unique = sum(len(node.ids) for node in order[1:])
    shown_tokens = sum(node.length for node in nodes)
    return PrefixTree(
        samples=samples,
        naive=sum(sums[node].count * len(node.ids) for node in order[1:]),
        unique=unique,
        depth=max((node.end for node in order[1:]), default=0),
        nodes=nodes,
        left_out=len(order) - 1 - len(nodes),
        left_out_tokens=unique - shown_tokens,
    )


def _sums(order: Sequence[Node], ends: Mapping[Node, Sequence[Sample]]) -> dict[Node, _Sum]:
    """The samples at and below each node but the root. `order`: every node, parents first."""
    sums: dict[Node, _Sum] = {}
    for node in reversed(order[1:]):
        child_sums = [sums[child] for child in node.children.values()]
        ending = ends.get(node, ())
        sums[node] = _Sum(
            count=len(ending) + sum(child.count for child in child_sums),
            groups={sample.group_id for sample in ending}.union(*(child.groups for child in child_sums)),
            rollouts={sample.rollout_id for sample in ending}.union(
                *(child.rollouts for child in child_sums)
            ),
            below=len(node.ids) + sum(child.below for child in child_sums),
            one=ending[0] if ending else child_sums[0].one,
        )
    return sums


def _drawn(root: Node, sums: Mapping[Node, _Sum], most: int) -> list[DrawnNode]:
    """The `most` nodes with the most tokens below them, each after its parent."""
    nodes: list[DrawnNode] = []
    waiting = [(-sums[child].below, n, child, None) for n, child in enumerate(root.children.values())]
    heap: list[tuple[int, int, Node, int | None]] = list(waiting)
    heapq.heapify(heap)
    pushed = len(heap)
    while heap and len(nodes) < most:
        _, _, node, parent = heapq.heappop(heap)
        total = sums[node]
        nodes.append(
            DrawnNode(
                parent=parent,
                start=node.start,
                length=len(node.ids),
                count=total.count,
                groups=len(total.groups),
                rollouts=len(total.rollouts),
                below=total.below,
                group_id=total.one.group_id,
                rollout_id=total.one.rollout_id,
                step=total.one.step,
                head=node.ids[:HEAD_TOKENS].tolist(),
            )
        )
        for child in node.children.values():
            heapq.heappush(heap, (-sums[child].below, pushed, child, len(nodes) - 1))
            pushed += 1
    return nodes
