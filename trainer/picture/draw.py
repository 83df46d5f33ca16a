"""The prefix tree of a train step as an SVG: one row per chain, from left to right the tokens of the context.

A bar is a run of tokens that the same samples share: sampled tokens in green, all others in grey, the darker the more samples share it.
×n is the number of samples. A line marks the point where a chain branches off the one above it.
"""

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

import numpy as np

from trainer.samples import Sample
from trainer.tree.plan import FlatTree, Longs

WIDTH = 900
ROW = 11
BAR = 8
LEFT, TOP = 10, 46
CHARACTER = 5.0  # width of one at the labels' size
SAMPLED, GIVEN = "#1b7837", "#5a6270"


def picture(samples: Sequence[Sample], title: str) -> str:
    """SVG text. Raises ValueError without samples."""
    if not samples:
        raise ValueError("there is nothing to draw: no sample is trained here")
    tree = FlatTree([sample.tokens for sample in samples])
    plan = tree.plan
    shared, sampled = np.zeros(plan.tokens, np.int64), np.zeros(plan.tokens, bool)
    for sample in samples:
        path = tree.locate(sample.tokens, 0, len(sample.tokens))
        shared[path] += 1
        sampled[path[sample.state_len :]] = True
    deepest = int(plan.position_ids.max()) + 1
    scale = (WIDTH - 2 * LEFT) / deepest
    rows = np.searchsorted(plan.squares[:, 0], np.arange(plan.tokens), "right") - 1
    height = TOP + ROW * len(plan.squares) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="8">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="16" font-size="12">{escape(title)}</text>',
        f'<text x="{LEFT}" y="31" font-size="10" fill="{GIVEN}">{escape(_sum(samples, plan.tokens, deepest))}</text>',
    ]
    branchings: list[str] = []  # above the bars
    for row, (begin, end) in enumerate(plan.squares.tolist()):
        top = TOP + ROW * row
        depth = int(plan.position_ids[begin])
        if depth:
            parent_row = int(rows[_parent(plan.position_ids, plan.subtree_end, begin)])
            x = LEFT + depth * scale
            branchings.append(
                f'<path d="M{x:.1f} {TOP + ROW * parent_row + BAR}V{top + BAR}" stroke="{GIVEN}" stroke-width="1"/>'
            )
        for start, stop in _stretches(shared, sampled, begin, end):
            lines += _bar(
                start - begin + depth, stop - start, int(shared[start]), bool(sampled[start]), top, scale
            )
    return "\n".join([*lines, *branchings, "</svg>", ""])


def _sum(samples: Sequence[Sample], tokens: int, deepest: int) -> str:
    naive = sum(len(sample.tokens) for sample in samples)
    return (
        f"{len(samples)} samples of {naive:,} tokens, {tokens:,} in the tree ({naive / tokens:.1f} times fewer), "
        f"the longest {deepest:,} · grey: prompt and observations · green: sampled by the policy · ×n: shared by n samples"
    )


def _parent(depths: Longs, ends: Longs, begin: int) -> int:
    """The flat position of the token that precedes flat position `begin` in its samples: the last visible token above it."""
    ancestors = np.flatnonzero((depths[:begin] == depths[begin] - 1) & (ends[:begin] > begin))
    return int(ancestors[-1])


def _stretches(shared: Longs, sampled: np.ndarray, begin: int, end: int) -> list[tuple[int, int]]:
    """Flat ranges of a chain in which neither `shared` nor `sampled` changes."""
    changes = (np.diff(shared[begin:end]) != 0) | (sampled[begin + 1 : end] != sampled[begin : end - 1])
    places = [begin, *(np.flatnonzero(changes) + begin + 1).tolist(), end]
    return list(pairwise(places))


def _bar(depth: int, length: int, shared: int, sampled: bool, top: int, scale: float) -> list[str]:
    x, width = LEFT + depth * scale, length * scale
    opacity = min(1.0, 0.35 + 0.12 * math.log2(shared))
    origin = "sampled by the policy" if sampled else "given"
    lines = [
        f'<rect x="{x:.1f}" y="{top}" width="{max(width - 0.4, 0.4):.1f}" height="{BAR}" fill="{SAMPLED if sampled else GIVEN}" '
        f'fill-opacity="{opacity:.2f}"><title>{length} tokens, {origin}, in {shared} samples</title></rect>'
    ]
    label = f"×{shared}"
    if shared > 1 and width > CHARACTER * len(label) + 2:
        lines.append(f'<text x="{x + 2:.1f}" y="{top + BAR - 1.2:.1f}" fill="#ffffff">{label}</text>')
    return lines
