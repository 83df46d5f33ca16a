"""From the steps of a rollout to demonstrations: one per leaf of its step tree.

A step whose whole conversation another step continues is not a leaf: the other step contains its tokens. An append-only rollout therefore
gives one demonstration; a rollout whose history was rewritten gives one per rewrite. Every recorded action is an action in exactly one
demonstration, whole. If a rewrite kept only the start of an action, that part is state. The actions of marked steps (train weight 0) and of
steps that a token limit cut are never learned, not even as state: the policy must not learn to loop, or to stop in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.contracts.marks import Finish
from orchestrator.pool.steps import StoredStep
from trainer.sft.corpus import TokenRole

GIVEN = -1


def demonstrations_of(steps: Sequence[StoredStep]) -> list[tuple[list[int], list[int]]]:
    """(ids, action) pairs of equal length, in order of their last step; `action` has the tokens' roles. `steps` are one attempt's, in idx order."""
    # By idx: for every token of `full` the step that produced it, or GIVEN.
    owners: dict[int, npt.NDArray[np.int64]] = {}
    continued: set[int] = set()
    for step in steps:
        prefix = owners[step.parent][: step.keep_len] if step.parent is not None else np.empty(0, np.int64)
        owner = np.full(len(step.tokens), GIVEN, np.int64)
        owner[: len(prefix)] = prefix
        owner[step.state_len :] = step.idx
        owners[step.idx] = owner
        if step.parent is not None and step.keep_len == len(owners[step.parent]):
            continued.add(step.parent)
    unlearned = {step.idx for step in steps if step.kept_out or step.finish is not Finish.STOP}
    excluded = set(unlearned)
    lengths = {step.idx: len(step.tokens) - step.state_len for step in steps}
    found: list[tuple[list[int], list[int]]] = []
    for step in steps:
        if step.idx in continued:
            continue
        owner = owners[step.idx]
        produced, counts = np.unique(owner[owner != GIVEN], return_counts=True)
        complete = {
            idx for idx, count in zip(produced.tolist(), counts, strict=True) if count == lengths[idx]
        }
        learned = np.isin(owner, list(complete - excluded))
        if learned.any():
            action = np.where(learned, TokenRole.ACTION, TokenRole.STATE)
            action[np.isin(owner, list(unlearned))] = TokenRole.UNLEARNED
            found.append((step.full.tolist(), action.tolist()))
        excluded |= complete
    return found
