"""Properties of the trie and the plan, checked against brute force over random sequences."""

import gc
import weakref

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.common_prefix import common_prefix
from orchestrator.trajectory.trie import Trie
from trainer.samples import Ids
from trainer.tree.plan import FlatTree, TreePlan

sequences = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=9).map(lambda ids: np.array(ids, np.int32)),
    min_size=1,
    max_size=10,
)
thorough = settings(max_examples=200, deadline=None)


def prefixes(rows: list[Ids]) -> set[tuple[int, ...]]:
    return {tuple(row[: n + 1].tolist()) for row in rows for n in range(len(row))}


def same_plan(a: TreePlan, b: TreePlan) -> bool:
    fields = ("ids", "position_ids", "subtree_end", "squares", "rectangles")
    return a.past == b.past and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in fields)


def roots(rows: list[Ids]) -> list[Branch]:
    return [Branch(own=row) for row in rows]


@thorough
@given(sequences)
def test_merged_token_count_is_the_number_of_distinct_prefixes(rows: list[Ids]) -> None:
    expected = len(prefixes(rows))
    assert Trie(roots(rows)).tokens == expected
    assert FlatTree(roots(rows)).plan.tokens == expected


@thorough
@given(sequences)
def test_blocks_cover_every_visible_pair_exactly_once(rows: list[Ids]) -> None:
    plan = FlatTree(roots(rows)).plan
    covered = np.zeros((plan.tokens, plan.tokens), np.int64)
    for begin, end in plan.squares:
        covered[begin:end, begin:end] += np.tri(end - begin, dtype=np.int64)
    for q_begin, q_end, k_begin, k_end in plan.rectangles:
        covered[q_begin:q_end, k_begin:k_end] += 1
    assert (covered == plan.mask()).all()
    assert plan.pairs == plan.mask().sum()
    rows_in_squares = np.concatenate([np.arange(begin, end) for begin, end in plan.squares])
    assert sorted(rows_in_squares.tolist()) == list(range(plan.tokens))


@thorough
@given(sequences)
def test_a_token_sees_exactly_the_tokens_of_its_own_sequence_up_to_itself(rows: list[Ids]) -> None:
    branches = roots(rows)
    tree = FlatTree(branches)
    mask = tree.plan.mask()
    for row, branch in zip(rows, branches, strict=True):
        places = tree.locate(branch, 0, len(row))
        assert (tree.plan.ids[places] == row).all()
        assert (tree.plan.position_ids[places] == np.arange(len(row))).all()
        for n, place in enumerate(places):
            assert np.flatnonzero(mask[place]).tolist() == places[: n + 1].tolist()


@thorough
@given(sequences, st.data())
def test_a_part_of_a_sequence_is_found_where_the_whole_lies(rows: list[Ids], data: st.DataObject) -> None:
    branches = roots(rows)
    tree, row = FlatTree(branches), branches[0]
    begin = data.draw(st.integers(0, len(row)))
    end = data.draw(st.integers(begin, len(row)))
    assert tree.locate(row, begin, end).tolist() == tree.locate(row, 0, len(row))[begin:end].tolist()


@thorough
@given(sequences)
def test_no_node_is_empty_and_each_starts_where_its_parent_ends(rows: list[Ids]) -> None:
    root, *nodes = Trie(roots(rows)).nodes
    assert all(len(node.ids) > 0 for node in nodes)
    assert all(
        child.start == node.end and child.parent == node.index and child.ids[0] == token
        for node in [root, *nodes]
        for (token, _), child in node.children.items()
    )


@given(sequences)
def test_the_order_of_the_samples_does_not_change_the_plan(rows: list[Ids]) -> None:
    assert same_plan(FlatTree(roots(rows)).plan, FlatTree(roots(rows[::-1])).plan)


def test_a_hand_made_tree_has_the_plan_of_the_docstring() -> None:
    plan = FlatTree([Branch(own=np.array(row, np.int32)) for row in ([1, 2, 5], [1, 2, 3, 4])]).plan
    assert plan.ids.tolist() == [1, 2, 3, 4, 5]
    assert plan.position_ids.tolist() == [0, 1, 2, 3, 2]
    assert plan.subtree_end.tolist() == [5, 5, 4, 4, 5]
    assert plan.squares.tolist() == [[0, 4], [4, 5]]
    assert plan.rectangles.tolist() == [[4, 5, 0, 2]]


def test_a_branch_meets_a_chain_of_many_nodes_in_one_block() -> None:
    spine = list(range(30))
    rows = [spine] + [[*spine[:cut], 100 + cut] for cut in (5, 10, 15)]
    plan = FlatTree([Branch(own=np.array(row, np.int32)) for row in rows]).plan
    assert plan.rectangles.tolist() == [[32, 33, 0, 5], [31, 32, 0, 10], [30, 31, 0, 15]]


def test_a_thousand_turns_do_not_recurse() -> None:
    rows = [np.arange(3 * turn, dtype=np.int32) for turn in range(1, 1001)]
    forks = [np.append(row, np.int32(9999)) for row in rows]
    assert FlatTree(roots(rows + forks)).plan.tokens == 3000 + 1000


def test_common_prefix_counts_equal_leading_tokens() -> None:
    a, b = np.array([1, 2, 3], np.int32), np.array([1, 2, 4, 5], np.int32)
    assert [common_prefix(x, y) for x, y in ((a, b), (a, a), (a, a[:1]), (a, a[:0]), (a, a[1:]))] == [
        2,
        3,
        1,
        0,
        0,
    ]


def test_a_tree_is_freed_at_once_without_a_garbage_collection() -> None:
    gc.disable()
    try:
        own = np.arange(5, dtype=np.int32)
        held = weakref.ref(own)
        shared = Branch(own=own)
        tree = FlatTree([shared, Branch(own=np.array([9, 9], np.int32), parent=shared, keep_len=3)])
        assert tree.plan.tokens == 7
        del own, shared, tree
        assert held() is None
    finally:
        gc.enable()
