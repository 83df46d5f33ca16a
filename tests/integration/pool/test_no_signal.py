"""A run whose newest groups all score alike reports it, with their scores and the remedy."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.cli import status
from orchestrator.pool.runs import StoredRun
from orchestrator.queries import spending
from orchestrator.queries.training_signal import MIN_GROUPS, NEWEST, no_signal
from tests import builders
from tests.integration.pool.rig import context_of, ended, record, report, rollouts_of, small, take, verify
from tests.integration.web.rig import configured, dashboard

pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def scored(engine: AsyncEngine, run: StoredRun, first: int, *groups: Sequence[float | None]) -> None:
    """Groups whose rollouts get these rewards by the steps of a real run: dispatched, reported, verified, concluded. None: every
    verification fails."""
    context, author = context_of(engine, run), builders.Author(turns=1)
    for number, rewards in enumerate(groups, first):
        (group,) = await builders.accepted(engine, run, [f"task {number}"], size=len(rewards))
        await builders.dispatch(engine, run)
        async with engine.connect() as connection:
            members = await rollouts_of(connection, group)
        for rollout, reward in zip(members, rewards, strict=True):
            async with engine.begin() as connection:
                lease = await take(connection, rollout)
            assert lease is not None
            written = author.trajectory(lease, run.name, author.ids(8, 9))
            await record(engine, run, written)
            assert await report(context, ended(run.name, lease, written))
            for _ in range(context.config.queue.max_attempts if reward is None else 1):
                await verify(context, rollout, reward)


async def sentence_of(engine: AsyncEngine, run: StoredRun) -> str | None:
    async with engine.connect() as connection:
        return await no_signal(connection, run.run_id)


async def test_status_and_the_run_page_say_that_all_groups_scored_alike(
    engine: AsyncEngine, database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await builders.make_run(engine, small())
    config = configured("run", database_url)
    await scored(engine, run, 0, *[(0.0, 0.0)] * MIN_GROUPS)
    sentence = f"all {MIN_GROUPS} groups scored alike (0 %): easier tasks or a better first policy"
    found = await status.read_run(config)
    assert found.no_signal == found.plain()["no_signal"] == sentence
    status._show(None, found, "")
    assert f"NO SIGNAL: {sentence}" in capsys.readouterr().out
    async with dashboard(config, tmp_path) as web:
        assert (await web.get("/api/run"))[1]["status"]["no_signal"] == sentence
        await scored(engine, run, MIN_GROUPS, (1.0, 0.0))
        assert (await web.get("/api/run"))[1]["status"]["no_signal"] is None
    found = await status.read_run(config)
    status._show(None, found, "")
    assert found.no_signal is None and "NO SIGNAL" not in capsys.readouterr().out


async def test_what_the_groups_scored_says_what_to_do_and_only_the_newest_count(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    await scored(engine, run, 0, (1.0, 0.0), *[(1.0, 1.0)] * (MIN_GROUPS - 2))
    assert await sentence_of(engine, run) is None, "one of them teaches, and they are few"
    await scored(engine, run, 100, *[(1.0, 1.0)] * (NEWEST - MIN_GROUPS + 2))
    assert await sentence_of(engine, run) == f"all {NEWEST} newest groups scored alike (100 %): harder tasks"
    await scored(engine, run, 200, (0.0, 0.0))
    mixed = await sentence_of(engine, run)
    assert mixed is not None and "(each within itself, 0 % to 100 %)" in mixed and "larger groups" in mixed


async def test_rollouts_without_a_verdict_are_named_next_to_the_shares_that_leave_them_out(
    engine: AsyncEngine, database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await builders.make_run(engine, small())
    config = configured("run", database_url)
    await scored(engine, run, 0, (1.0, 0.0), (1.0, 0.0, 0.0, None))
    sentence = (
        "1 of 6 rollouts in the newest 2 groups have no verdict and are in no share: 1 verifier_failure"
    )
    found = await status.read_run(config)
    assert found.plain()["without_verdict"] == sentence
    status._show(None, found, "")
    assert f"NO VERDICT: {sentence}" in capsys.readouterr().out
    async with dashboard(config, tmp_path) as web:
        assert (await web.get("/api/run"))[1]["status"]["without_verdict"] == sentence
        spent = (await web.get("/api/series"))[1]["spending"]
        assert (
            spent["left_out"] == spent["now"]["left_out"] == {"verifier_failure": 1}
            and spent["now"]["n"] == 5
        )
        rows = (await web.get("/api/groups"))[1]["groups"]
        counts = [(row["judged"], row["done"], row["size"]) for row in rows if row["purpose"] == "train"]
        assert counts == [(3, 4, 4), (2, 2, 2)]
    async with engine.connect() as connection:
        whole = await spending.spending(connection, run.run_id)
    assert whole.failures["verifier_failure"] == 1
