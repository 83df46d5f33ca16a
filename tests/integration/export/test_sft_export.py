"""Exporting recorded trajectories from the data pool into a file of demonstrations."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import Purpose
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.recorded import Selection
from orchestrator.settings.config import Config
from tests.builders import Author, accepted, dispatch, finish, make_run
from trainer.sft.corpus import Demonstrations, TokenRole, tokenizer_digest
from trainer.sft.export import Exported, export

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("tasks")]


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with open_engine(database_url, size=2) as engine:
        yield engine


@pytest.fixture
async def run(engine: AsyncEngine) -> StoredRun:
    return await make_run(engine, Config.model_validate({"run": {"name": "test"}}))


@pytest.fixture
async def reader(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with open_engine(database_url, Role.READER, size=1) as engine:
        yield engine


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The export reads only the identity of the tokenizer from a model directory."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "tokenizer.json").write_text("{}")
    return directory


async def exported(
    reader: AsyncEngine, model: Path, wanted: Selection | None = None
) -> tuple[Exported, Demonstrations]:
    file = model.parent / "demonstrations.safetensors"
    summary = await export(reader, "test", wanted or Selection(), model, file)
    return summary, Demonstrations.load(file, tokenizer=tokenizer_digest(model))


async def record(
    engine: AsyncEngine,
    run: StoredRun,
    name: str,
    author: Author,
    *,
    marked: tuple[int, ...] = (),
    good: int = 1,
) -> None:
    """One group of 4 rollouts of three steps: 1 continues 0, and 2 rewrites everything behind the prompt. `good` of them succeed."""
    [group] = await accepted(engine, run, [name])
    await dispatch(engine, run)
    await finish(engine, run, group, author, performances=[1.0] * good + [0.0] * (4 - good), marked=marked)


async def test_a_rollout_gives_one_demonstration_per_leaf_of_its_step_tree(
    engine: AsyncEngine, reader: AsyncEngine, run: StoredRun, model: Path
) -> None:
    class Noting(Author):
        def trajectory(self, *arguments: object) -> list[Any]:
            written = super().trajectory(*arguments)  # type: ignore[arg-type]
            lengths.append([(step.state_len, step.full_len, step.keep_len) for step in written])
            return written

    lengths: list[list[tuple[int, int, int]]] = []
    await record(engine, run, "one", Noting(seed=1))
    summary, found = await exported(reader, model)
    assert summary.rollouts == 4 and len(found) == 8
    for rollout, (first, second, rewritten) in enumerate(lengths):
        ids, action = found[2 * rollout]
        assert len(ids) == second[1]
        expected = np.zeros(second[1], np.uint8)
        expected[first[0] : first[1]] = expected[second[0] : second[1]] = 1
        assert (action == expected).all()
        other, action = found[2 * rollout + 1]
        assert len(other) == rewritten[1] and (other[: rewritten[2]] == ids[: rewritten[2]]).all()
        assert action.nonzero()[0].tolist() == list(range(rewritten[0], rewritten[1]))
    assert summary.tokens == len(found.ids) and summary.action_tokens == found.action.sum()
    assert summary.longest == np.diff(found.offsets).max()


async def test_marked_steps_are_not_actions_and_alone_give_no_demonstration(
    engine: AsyncEngine, reader: AsyncEngine, run: StoredRun, model: Path
) -> None:
    await record(engine, run, "one", Author(seed=1))
    plain, _ = await exported(reader, model)
    await record(engine, run, "two", Author(seed=1), marked=(1, 2))
    both, found = await exported(reader, model)
    assert (plain.demonstrations, both.demonstrations) == (8, 12)
    assert both.action_tokens == (found.action == TokenRole.ACTION).sum() < 2 * plain.action_tokens
    for role, count in ((TokenRole.ACTION, 1), (TokenRole.UNLEARNED, 1)):  # of two actions, one is left
        starts = [np.diff((found[i][1] == role).astype(int), prepend=0) == 1 for i in range(8, 12)]
        assert [start.sum() for start in starts] == [count] * 4


async def test_a_reply_that_a_token_limit_cut_is_not_an_action(
    engine: AsyncEngine, reader: AsyncEngine, run: StoredRun, model: Path
) -> None:
    class Cut(Author):
        def trajectory(self, *arguments: object) -> list[Any]:
            first, second, rewritten = super().trajectory(*arguments)  # type: ignore[arg-type]
            return [first, second, msgspec.structs.replace(rewritten, finish="length")]

    await record(engine, run, "one", Cut(seed=1))
    _, found = await exported(reader, model)
    assert len(found) == 4  # only the whole leaf, in each rollout


async def test_only_the_selected_rollouts_are_exported(
    engine: AsyncEngine, reader: AsyncEngine, run: StoredRun, model: Path
) -> None:
    await record(engine, run, "one", Author(seed=1), good=1)
    await record(engine, run, "two", Author(seed=2), good=3)
    everything, _ = await exported(reader, model)
    assert (everything.rollouts, everything.success) == (8, 0.5)
    good, _ = await exported(reader, model, Selection(min_performance=1.0))
    assert (good.rollouts, good.success) == (4, 1.0)
    assert (await exported(reader, model, Selection(purpose=Purpose.TRAIN, scaffold="shell")))[
        0
    ].rollouts == 8
    assert (await exported(reader, model, Selection(label="")))[0].rollouts == 8
    for nothing in (Selection(label="x"), Selection(purpose=Purpose.RECORD), Selection(domain="general")):
        with pytest.raises(ValueError, match="no verified rollout that matches"):
            await exported(reader, model, nothing)


async def test_a_failed_export_leaves_the_file_as_it_was(
    engine: AsyncEngine, reader: AsyncEngine, run: StoredRun, model: Path
) -> None:
    file = model.parent / "demonstrations.safetensors"
    file.write_bytes(b"precious")
    await record(engine, run, "one", Author(seed=1))
    with pytest.raises(ValueError, match="no verified rollout that matches"):
        await export(reader, "test", Selection(min_performance=1.1), model, file)
    with pytest.raises(ConfigurationError, match="run 'other' does not exist"):
        await export(reader, "other", Selection(), model, file)
    assert file.read_bytes() == b"precious"
    assert sorted(path.name for path in model.parent.iterdir()) == [file.name, "model"]
