"""The tree built from stored steps (parents, keep_len, deltas) equals the tree built from the expanded samples."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.trajectory.branch import Branch
from tests.unit.trainer.test_trie_and_plan import prefixes, same_plan
from trainer.samples import Ids, Sample
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget
from trainer.tree.plan import FlatTree

tokens = st.lists(st.integers(0, 2), max_size=5).map(lambda ids: np.array(ids, np.int32))


@st.composite
def step_trees(draw: st.DrawFn) -> tuple[list[Branch], list[Branch]]:
    """(all branches, those that are trained): prompts, continuations, rewrites, sub-agents' roots, duplicates, one-token branches.

    With three ids alone branches of different parents often hold the same tokens, start alike, or end inside one another.
    """
    prompts = [Branch(own=ids) for ids in draw(st.lists(tokens, min_size=1, max_size=3))]
    steps: list[Branch] = []
    for _ in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from([*prompts, *steps, *steps[-2:]]))
        whole = draw(st.booleans())
        keep_len = len(parent) if whole else draw(st.integers(0, len(parent)))
        steps.append(Branch(own=draw(tokens), parent=parent, keep_len=keep_len))
    chosen = draw(st.lists(st.sampled_from(steps), min_size=1, max_size=12))
    return [*prompts, *steps], [step for step in chosen if len(step) > 1]


def expanded(branches: Sequence[Branch]) -> list[Branch]:
    return [Branch(own=branch.full) for branch in branches]


@settings(max_examples=120, deadline=None)
@given(step_trees())
def test_the_plan_from_stored_steps_equals_that_from_expanded_samples(
    tree: tuple[list[Branch], list[Branch]],
) -> None:
    _, trained = tree
    stored, plain = FlatTree(trained), FlatTree(expanded(trained))
    assert same_plan(stored.plan, plain.plan)
    assert stored.plan.tokens == len(prefixes([branch.full for branch in trained]))
    for branch in trained:
        assert (stored.plan.ids[stored.locate(branch, 0, len(branch))] == branch.full).all()


@settings(max_examples=50, deadline=None)
@given(step_trees(), st.integers(1, 12), st.data())
def test_loss_edges_and_passes_equal_those_of_expanded_samples(
    tree: tuple[list[Branch], list[Branch]], budget: int, data: st.DataObject
) -> None:
    _, trained = tree
    cuts = [data.draw(st.integers(1, len(branch))) for branch in trained]
    both = [
        [sample(branch, cut) for branch, cut in zip(branches, cuts, strict=True)]
        for branches in (trained, expanded(trained))
    ]
    stored, plain = (pack_samples(samples, PassBudget(budget)) for samples in both)
    assert stored.passes == plain.passes and stored.indices == plain.indices
    for name in ("position", "target", "sample", "offset", "temperature"):
        assert np.array_equal(getattr(stored.edges, name), getattr(plain.edges, name))


def sample(branch: Branch, state_len: int) -> Sample:
    zeros = np.zeros(len(branch) - state_len, np.float32)
    return Sample(
        tokens=branch,
        state_len=state_len,
        behavior_logprobs=zeros,
        versions=zeros.astype(np.int32),
        advantage=zeros,
        weight=zeros + 1,
        group="g",
        rollout="r",
        step=0,
    )


@settings(max_examples=30, deadline=None)
@given(step_trees(), st.data())
def test_a_branch_reads_as_its_parents_tokens_and_then_its_own(
    tree: tuple[list[Branch], list[Branch]], data: st.DataObject
) -> None:
    branches, _ = tree
    whole: dict[Branch, list[int]] = {}
    for branch in branches:
        above = whole[branch.parent][: branch.keep_len] if branch.parent else []
        whole[branch] = above + branch.own.tolist()
        begin = data.draw(st.integers(0, len(branch)))
        assert branch.full.tolist() == whole[branch] and len(branch) == len(whole[branch])
        assert branch.tail(begin).tolist() == whole[branch][begin:]


class Counted(np.ndarray):
    """An array that counts how many of its elements were looked at in comparisons."""

    looked_at = 0

    def __ne__(self, other: object) -> "Counted":  # type: ignore[override]
        Counted.looked_at += len(self)
        return np.not_equal(self, other)  # type: ignore[call-overload,no-any-return]


def test_building_looks_at_stored_tokens_only() -> None:
    """Two rollouts of 50 turns on one prompt: 2 · 50 · 20 stored tokens behind 1,000, expanded more than 150,000."""
    prompt, branches = Branch(own=ids(1000).view(Counted)), []
    for rollout in range(2):
        step = prompt
        for turn in range(50):
            own = np.append(ids(19, start=turn), np.int32(rollout))
            step = Branch(own=own.view(Counted), parent=step, keep_len=len(step))
            branches.append(step)
    assert sum(map(len, branches)) > 150_000
    Counted.looked_at = 0
    assert FlatTree(branches).plan.tokens == 1000 + 2 * 50 * 20 - 19
    assert 0 < Counted.looked_at <= 2 * 50 * 20


def ids(n: int, start: int = 0) -> Ids:
    return np.arange(start, start + n, dtype=np.int32)


def test_tokens_of_a_parent_that_no_branch_keeps_are_not_in_the_tree() -> None:
    marked = Branch(own=ids(5), parent=Branch(own=ids(4)), keep_len=4)
    kept = Branch(own=ids(2, start=50), parent=marked, keep_len=6)
    assert FlatTree([kept]).plan.ids.tolist() == [0, 1, 2, 3, 0, 1, 50, 51]


def test_a_step_that_keeps_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps 5 tokens of the 4 above it"):
        Branch(own=ids(1), parent=Branch(own=ids(4)), keep_len=5)
