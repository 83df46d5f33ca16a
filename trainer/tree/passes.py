"""Cuts a tree into passes, each forwarded at once, so that memory is bounded for trees of any size.

A pass is a part of the tree that hangs at one point below a path of tokens whose keys and values are known. There are two kinds:

    leaf    whole subtrees, siblings at that point, as many as fit
    trunk   a piece of a chain with other passes below its end, and the small side branches that leave the chain on the way

    prompt ──────────────┬── rollout 1 ──        trunk: prompt                     kept as keys and values, forwarded again
                         ├── rollout 2 ──        leaf:  rollouts 1 and 2           for its gradient once all below it is done
                         └── rollout 3 ──        leaf:  rollout 3

A tree within the budget is one leaf. A trunk costs one forward pass more than a leaf, and is therefore as short as the budget of the passes below it
allows. Passes are listed depth first: the passes below a trunk follow it directly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.trajectory.trie import Node
from trainer.tree.plan import FlatTree, Longs


@dataclass(frozen=True, slots=True)
class PassBudget:
    """The limits of one pass. `tokens` bounds its memory. `pairs` bounds its time: visible (query, key) pairs, including keys of the path."""

    tokens: int
    pairs: int = 1 << 28

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.pairs < 1:
            raise ValueError(
                f"a pass needs room for at least 1 token and 1 pair, got {self.tokens} and {self.pairs}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """`ranges`: ascending flat ranges. The first `trunk` tokens are the chain with other passes below its end; 0 in a leaf."""

    ranges: tuple[tuple[int, int], ...]
    past: int  # tokens on the path above
    trunk: int
    parent: int  # index of the trunk above it, −1 for none

    @property
    def tokens(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


def cut_into_passes(tree: FlatTree, budget: PassBudget) -> tuple[Pass, ...]:
    """Passes within the budget that hold every token exactly once; every parent comes before its children.

    Raises ConfigurationError if not even one token of the deepest path fits.
    """
    plan = tree.plan
    deepest = int(plan.position_ids.max(initial=-1)) + 1
    if deepest > budget.pairs:
        raise ConfigurationError(
            f"the budget of {budget.pairs} attention pairs is too small for a path of {deepest} tokens, whose last token alone sees "
            f"{deepest}; raise trainer.pack_pairs to at least that, better to its product with trainer.pack_tokens, and start the trainer again"
        )
    return _Cut(tree, budget).run()


class _Cut:
    """A piece is (node, begin): a subtree without the node's tokens before flat position `begin`. It is one flat range."""

    def __init__(self, tree: FlatTree, budget: PassBudget) -> None:
        self._tree, self._budget = tree, budget
        self._begin, self._end = tree.begin.tolist(), tree.end.tolist()
        # Attention pairs of the tokens before each.
        self._pairs: Longs = np.concatenate([[0], np.cumsum(tree.plan.position_ids + 1)])
        self._passes: list[Pass] = []

    def run(self) -> tuple[Pass, ...]:
        # Pieces that hang at one point, tokens above it, the trunk above it.
        stack = [(self._below(0), 0, -1)]
        while stack:
            pieces, past, parent = stack.pop()
            small: list[tuple[int, int]] = []
            big: list[tuple[Node, int]] = []
            for node, begin in pieces:
                end = self._end[node.index]
                if self._fits(begin, end):
                    small.append((begin, end))
                else:
                    big.append((node, begin))
            for ranges in self._filled(small):
                self._passes.append(Pass(ranges=ranges, past=past, trunk=0, parent=parent))
            if len(big) > 1:  # each with everything below it before the next
                stack.extend(([piece], past, parent) for piece in big)
            elif big:
                trunk, children = self._trunk(big[0], past, parent)
                self._passes.append(trunk)
                stack.append((children, past + trunk.trunk, len(self._passes) - 1))
        return tuple(self._passes)

    def _below(self, index: int) -> list[tuple[Node, int]]:
        return [(child, self._begin[child.index]) for child in self._tree.children[index]]

    def _fits(self, begin: int, end: int, tokens: int = 0, pairs: int = 0) -> bool:
        """Whether a flat range fits in addition to `tokens` and `pairs`."""
        added_pairs = int(self._pairs[end] - self._pairs[begin])
        return tokens + end - begin <= self._budget.tokens and pairs + added_pairs <= self._budget.pairs

    def _filled(self, small: list[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]:
        """Ranges that each fit, joined in order as long as they fit together."""
        filled: list[list[tuple[int, int]]] = []
        tokens = pairs = 0
        for begin, end in small:
            if not filled or not self._fits(begin, end, tokens, pairs):
                filled.append([])
                tokens = pairs = 0
            filled[-1].append((begin, end))
            tokens, pairs = tokens + end - begin, pairs + int(self._pairs[end] - self._pairs[begin])
        return [tuple(ranges) for ranges in filled]

    def _trunk(self, piece: tuple[Node, int], past: int, parent: int) -> tuple[Pass, list[tuple[Node, int]]]:
        """The trunk at the start of a piece that does not fit, and the pieces below its end."""
        node, start = piece
        at, tokens, pairs = start, 0, 0
        sides: list[tuple[int, int]] = []
        while True:
            node_end, end = self._begin[node.index] + len(node.ids), self._end[node.index]
            before = int(self._pairs[at])
            limit = int(np.searchsorted(self._pairs, before + self._budget.pairs - pairs, "right")) - 1 - at
            maximum = min(limit, self._budget.tokens - tokens)
            rest_fits = int(np.searchsorted(self._pairs, self._pairs[end] - self._budget.pairs))
            enough = max(end - self._budget.tokens, rest_fits) - at
            count = max(0, min(maximum, enough, node_end - at))
            at += count
            tokens, pairs = tokens + count, pairs + int(self._pairs[at]) - before
            if at < node_end:
                rest = [(node, at)]
                break
            first, *others = self._below(node.index)
            side = self._end[first[0].index], end
            if count >= enough or not self._fits(*side, tokens, pairs):
                rest = [first, *others]
                break
            if others:
                sides.append(side)
                tokens, pairs = (
                    tokens + side[1] - side[0],
                    pairs + int(self._pairs[end] - self._pairs[side[0]]),
                )
            node = first[0]
        return Pass(ranges=((start, at), *reversed(sides)), past=past, trunk=at - start, parent=parent), rest
