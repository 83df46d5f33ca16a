"""The prefix tree that people see is the tree that training merges."""

import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import NotFoundError
from orchestrator.pool import batches
from orchestrator.pool.batches import NewVersion
from orchestrator.queries import batches as look
from orchestrator.queries.tree import Sample, prefix_tree
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.trie import Trie
from tests import builders
from tests.integration.pool.rig import a_row_in_every_table, small
from trainer.batch import parts_of, read_rows

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


async def test_the_tree_of_a_batch_has_as_many_tokens_as_the_trainers_own(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small(batch_groups=4, capacity=6))
    # Few ids, so that samples share more than their prompts.
    author = builders.Author(seed=3, turns=4, vocab=5)
    names = ["a", "b", "c", "d"]
    made = await builders.accepted(engine, run, names)
    await builders.dispatch(engine, run)
    for group_id in made:
        await builders.finish(engine, run, group_id, author, marked=[1])
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
        batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 4, 1)
        assert batch is not None and batch.digest is not None
    async with engine.connect() as connection:
        for of in (1, 2):
            parts = parts_of(await read_rows(connection, run.run_id, batch.batch_id), of, None)
            assert len(parts) == of
            for n, part in enumerate(parts):
                branches = [sample.tokens for sample in part.samples]
                outline = (await look.batch_tree(connection, run.run_id, 0, part=(n, of))).tree
                assert outline.samples == len(branches)
                assert outline.unique == Trie(branches).tokens
                assert outline.naive == sum(map(len, branches))
                assert sum(node.length * node.count for node in outline.nodes) == outline.naive
        with pytest.raises(NotFoundError, match="no part 2"):
            await look.batch_tree(connection, run.run_id, 0, part=(2, 2))


@pytest.mark.parametrize("seed", range(8))
def test_random_branches_give_the_tokens_of_the_trainers_trie(seed: int) -> None:
    dice = np.random.default_rng(seed)
    branches: list[Branch] = []
    for _ in range(60):
        own = dice.integers(0, 3, dice.integers(0, 9)).astype(np.int32)
        parent = branches[dice.integers(len(branches))] if branches and dice.random() < 0.7 else None
        branches.append(
            Branch(own=own, parent=parent, keep_len=int(dice.integers(0, len(parent) + 1)) if parent else 0)
        )
    chosen = [branch for branch in branches if dice.random() < 0.6]
    tree = prefix_tree(
        [Sample(tokens=branch, group_id=n, rollout_id=n, step=0) for n, branch in enumerate(chosen)]
    )
    assert tree.unique == Trie(chosen).tokens and tree.naive == sum(map(len, chosen))
    assert sum(node.length * node.count for node in tree.nodes) == tree.naive
    for node in tree.nodes:
        above = None if node.parent is None else tree.nodes[node.parent]
        assert node.start == (0 if above is None else above.start + above.length)
        assert above is None or (above.count >= node.count and above.below >= node.below + above.length)
    few = prefix_tree(
        [Sample(tokens=branch, group_id=n, rollout_id=n, step=0) for n, branch in enumerate(chosen)], drawn=5
    )
    assert few.nodes == tree.nodes[:5] and few.left_out == len(tree.nodes) - len(few.nodes)
    assert few.left_out_tokens == tree.unique - sum(node.length for node in few.nodes)


def test_no_sample_makes_an_empty_tree_that_saves_nothing() -> None:
    tree = prefix_tree([])
    assert (tree.naive, tree.unique, tree.ratio, tree.nodes) == (0, 0, 1.0, [])


async def test_a_batch_shows_its_groups_and_what_its_train_steps_measured(engine: AsyncEngine) -> None:
    run = await a_row_in_every_table(engine)
    async with engine.connect() as connection:
        shown = await look.batch(connection, run.run_id, 0)
        assert (shown.state, shown.version, shown.trainer_version) == ("committed", 1, 0)
        assert [(group.task, group.rollouts) for group in shown.groups] == [("a", 4), ("b", 4)]
        assert shown.train_steps[0].metrics == {"loss": 0.5}
        assert all(group.reward is not None and group.advantage_spread for group in shown.groups)
        [row] = await look.batch_list(connection, run.run_id)
        assert (row.batch_no, row.taken, row.train_steps) == (0, 2, 1)
        assert await look.batch_list(connection, run.run_id, before=0) == []
        for query in (look.batch(connection, run.run_id, 9), look.batch_tree(connection, run.run_id, 9)):
            with pytest.raises(NotFoundError, match="batch 9 does not exist"):
                await query


async def test_a_batch_in_the_list_is_all_of_its_train_steps(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    await builders.ready_groups(engine, run, ["a", "b"], builders.Author())
    parts = [
        {"reward": 0.5, "performance": 0.25, "rollouts": 6, "tokens_naive": 300, "tokens_merged": 100, "action_tokens": 40, "merge_ratio": 3.0},
        {"reward": 0.1, "performance": 0.05, "rollouts": 2, "tokens_naive": 100, "tokens_merged": 60, "action_tokens": 25, "merge_ratio": 5 / 3},
    ]  # fmt: skip
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
        taken = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
        assert taken is not None
        new = NewVersion(version=1, parent=0, path="/v1", manifest_sha="11")
        assert await batches.commit(
            connection, run.run_id, run.name, batch=taken, new=new, metrics=parts, subject="policy.x"
        )
    async with engine.connect() as connection:
        [row] = await look.batch_list(connection, run.run_id)
    assert (row.train_steps, row.action_tokens) == (2, 65)
    assert (row.reward, row.performance, row.merge_ratio) == pytest.approx((0.4, 0.2, 2.5))
