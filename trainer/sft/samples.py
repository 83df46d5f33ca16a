"""From the steps of a rollout to demonstrations: one per leaf of its step tree.

A step whose whole conversation another step goes on with is no leaf: its tokens are in that one's. An append-only rollout therefore
gives one demonstration; one whose history was rewritten gives one per rewrite. Every action that a rollout recorded is an action in
exactly one of them, whole; where a rewrite kept only the beginning of it, that is state. A marked step (train weight 0) is an action in none, and
neither is one that a limit of tokens cut: nobody should learn to stop in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.pool.steps import StoredStep

STATE = -1


def demonstrations_of(steps: Sequence[StoredStep]) -> list[tuple[list[int], list[bool]]]:
    """(ids, action) pairs of equal length, in order of their last step. `steps` are one attempt's, in idx order."""
    owners: dict[
        int, npt.NDArray[np.int64]
    ] = {}  # by idx: for every token of `full` the step that produced it, else STATE
    continued: set[int] = set()
    for step in steps:
        above = owners[step.parent][: step.keep_len] if step.parent is not None else np.empty(0, np.int64)
        owner = np.full(len(step.tokens), STATE, np.int64)
        owner[: len(above)] = above
        owner[step.state_len :] = step.idx
        owners[step.idx] = owner
        if step.parent is not None and step.keep_len == len(owners[step.parent]):
            continued.add(step.parent)
    taken = {step.idx for step in steps if step.marked or step.finish != "stop"}
    lengths = {step.idx: len(step.tokens) - step.state_len for step in steps}
    found: list[tuple[list[int], list[bool]]] = []
    for step in steps:
        if step.idx in continued:
            continue
        owner = owners[step.idx]
        produced, counts = np.unique(owner[owner != STATE], return_counts=True)
        whole = {idx for idx, count in zip(produced.tolist(), counts, strict=True) if count == lengths[idx]}
        action = np.isin(owner, list(whole - taken))
        if action.any():
            found.append((step.full.tolist(), action.tolist()))
        taken |= whole
    return found
