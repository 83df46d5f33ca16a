"""Passes: every token once, within the budget, below exactly the path that it sees."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.trajectory.branch import Branch
from tests.unit.trainer.test_trie_and_plan import roots, sequences
from trainer.samples import Ids
from trainer.tree.passes import Pass, PassBudget, cut_into_passes
from trainer.tree.plan import FlatTree, Longs, TreePlan

thorough = settings(max_examples=100, deadline=None)
budgets = st.builds(PassBudget, st.integers(1, 25), st.integers(9, 120))


def rows_of(one: Pass) -> Longs:
    return np.concatenate([np.arange(begin, end) for begin, end in one.ranges])


def path_of(passes: tuple[Pass, ...], one: Pass) -> list[int]:
    """Flat positions of the tokens above a pass, from the root on."""
    above: list[int] = []
    while one.parent >= 0:
        one = passes[one.parent]
        above = rows_of(one)[: one.trunk].tolist() + above
    return above


@thorough
@given(sequences, budgets)
def test_passes_hold_every_token_once_within_the_budget(rows: list[Ids], budget: PassBudget) -> None:
    tree = FlatTree(roots(rows))
    passes = cut_into_passes(tree, budget)
    assert sorted(np.concatenate([rows_of(one) for one in passes]).tolist()) == list(range(tree.plan.tokens))
    for one in passes:
        part = tree.plan.part(one.ranges, one.past)
        assert one.tokens == part.tokens <= budget.tokens and part.pairs <= budget.pairs
        assert all(end <= begin for (_, end), (begin, _) in pairwise(one.ranges))


@thorough
@given(sequences, budgets)
def test_a_token_sees_the_path_above_its_pass_and_within_it_what_its_block_covers(
    rows: list[Ids], budget: PassBudget
) -> None:
    tree = FlatTree(roots(rows))
    mask = tree.plan.mask()
    passes = cut_into_passes(tree, budget)
    for one in passes:
        mine, above = rows_of(one), path_of(passes, one)
        assert one.past == len(above)
        part = tree.plan.part(one.ranges, one.past)
        assert (part.mask() == mask[np.ix_(mine, mine)]).all()
        assert (covered(part) == part.mask()).all()
        assert part.pairs == mask[mine].sum() == part.mask().sum() + len(mine) * len(above)
        for row in mine:
            assert set(np.flatnonzero(mask[row])) == {*above, *mine[part.mask()[mine == row][0]]}


def covered(plan: TreePlan) -> Longs:
    counts = np.zeros((plan.tokens, plan.tokens), np.int64)
    for begin, end in plan.squares:
        counts[begin:end, begin:end] += np.tri(end - begin, dtype=np.int64)
    for q_begin, q_end, k_begin, k_end in plan.rectangles:
        counts[q_begin:q_end, k_begin:k_end] += 1
    return counts


@thorough
@given(sequences, budgets)
def test_what_hangs_on_a_trunk_follows_it_before_anything_else(rows: list[Ids], budget: PassBudget) -> None:
    passes = cut_into_passes(FlatTree(roots(rows)), budget)
    open_trunks = [-1]
    for number, one in enumerate(passes):
        while open_trunks[-1] != one.parent:
            open_trunks.pop()  # IndexError: its trunk was closed before
        if one.trunk:
            open_trunks.append(number)
    assert {one.parent for one in passes} - {-1} == {i for i, one in enumerate(passes) if one.trunk}


def tree_of(*rows: list[int]) -> FlatTree:
    return FlatTree([Branch(own=np.array(row, np.int32)) for row in rows])


def test_a_tree_within_the_budget_is_one_leaf() -> None:
    [leaf] = cut_into_passes(tree_of([1, 2, 3], [1, 4], [5]), PassBudget(5))
    assert leaf == Pass(ranges=((0, 4), (4, 5)), past=0, trunk=0, parent=-1)


def test_a_shared_prompt_is_the_trunk_of_the_rollouts_that_do_not_fit_together() -> None:
    prompt = list(range(6))
    tree = tree_of(*([*prompt, 10 * r, *range(5)] for r in range(1, 4)))
    assert cut_into_passes(tree, PassBudget(12)) == (
        Pass(ranges=((0, 6),), past=0, trunk=6, parent=-1),
        Pass(ranges=((6, 12), (12, 18)), past=6, trunk=0, parent=0),
        Pass(ranges=((18, 24),), past=6, trunk=0, parent=0),
    )


def test_a_long_chain_is_chunked_and_only_as_much_of_it_is_a_trunk_as_the_last_chunk_leaves() -> None:
    passes = cut_into_passes(tree_of(list(range(20))), PassBudget(8))
    assert [(one.ranges, one.past, one.trunk) for one in passes] == [
        (((0, 8),), 0, 8),
        (((8, 12),), 8, 4),
        (((12, 20),), 12, 0),
    ]


def test_small_branches_off_a_long_chain_go_with_it() -> None:
    spine = list(range(30))
    forks = [[*spine[:cut], 100 + cut] for cut in (5, 10, 25)]
    passes = cut_into_passes(tree_of(spine, *forks), PassBudget(17))
    assert [(one.ranges, one.trunk) for one in passes] == [
        (((0, 14), (31, 32), (32, 33)), 14),  # with the forks after 5 and 10 tokens
        (((14, 31),), 0),  # the rest, with the fork after 25
    ]


def test_pairs_shorten_the_chunks_of_a_long_path() -> None:
    passes = cut_into_passes(tree_of(list(range(100))), PassBudget(50, 500))
    lengths = [one.tokens for one in passes]
    assert sum(lengths) == 100 and lengths[0] == 31 and max(lengths[2:]) < 15


def test_a_budget_that_is_too_small_for_one_token_of_the_path_is_refused() -> None:
    with pytest.raises(ValueError, match="budget of 19 attention pairs is too small for a path of 20 tokens"):
        cut_into_passes(tree_of(list(range(20))), PassBudget(8, 19))
    with pytest.raises(ValueError, match="at least 1 token and 1 pair, got 0 and 5"):
        PassBudget(0, 5)


def test_ten_thousand_trunks_do_not_recurse() -> None:
    tree = tree_of(list(range(10_000)))
    assert len(cut_into_passes(tree, PassBudget(1))) == 10_000
