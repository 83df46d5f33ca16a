"""Every query of ops/guides/sql-cookbook.md runs as the reader on a real data pool, and its answer there has the columns that the page shows."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import FailureClass, Purpose
from orchestrator.pool import batches, runs, tables
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.dispatch import dispatch_other
from orchestrator.pool.engine import Role, open_engine
from orchestrator.queries.evaluations import wilson
from orchestrator.scheduling.queue_policies import queue_policy
from tests import builders
from tests.integration.pool.rig import small
from tests.integration.queries.evaluations_rig import evaluated

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

PAGE = Path(__file__).resolve().parents[3] / "ops/guides/sql-cookbook.md"
RECIPE = re.compile(
    r"^### (?P<question>.+)\n(?:(?!```|#).*\n)*```sql\n(?P<query>(?s:.*?))\n```\n```text\n(?P<columns>.*)\n(?P<rows>(?s:.*?))\n```$",
    re.M,
)
QUERIES = {found["question"]: found for found in RECIPE.finditer(PAGE.read_text())}
LEARNED = "Did it learn? Held-out success, with 95 % intervals"
NOT_HERE = (  # no rows below answer these until `what_is_rare` adds some
    "Do the rollouts of a group only repeat one another?",
    "Which train steps were skipped, and why?",
    "Whose reward looks too easy? (reward hacking suspects)",
    "Which groups gave no signal, and what were they worth?",
    "Which batches were given up, and why?",
)
ONE_ROW_EACH = {"groups", "rollouts", "attempts", "rewards"}  # a query about all of them reads all of them
METRICS = {
    "applied": True, "loss": 0.5, "gradient_norm": 1.0, "lr": 1e-5, "entropy": 0.3, "kl_k3": 0.01, "ess": 0.9, "clip_fraction": 0.0,
    "groups": 1, "rollouts": 4, "action_tokens": 50, "tokens_naive": 300, "tokens_merged": 100, "merge_ratio": 3.0,
    "staleness": {"0": 40, "2": 10}, "wall_s": 0.5, "reward": 0.5, "performance": 0.25, "mean_abs_dlogprob": 0.01,
}  # fmt: skip


@pytest.fixture
async def reader(engine: AsyncEngine, database_url: str) -> AsyncIterator[AsyncEngine]:
    """Run 1: a committed batch of two train steps, an evaluation, a group that is open, a mark, timed tool calls, a counter."""
    run = await builders.make_run(engine, small("cookbook"))
    assert run.run_id == 1
    first, second = await builders.ready_groups(engine, run, ["a", "b"], builders.Author())
    await builders.accepted(engine, run, ["e"], purpose=Purpose.EVAL, pinned_version=0)
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
        batch = await batches.take(connection, 1, queue_policy("greedy", 6, 0.3), 2, 1)
        assert batch is not None
        new = NewVersion(version=1, parent=0, path="/v1", manifest_sha="11")
        assert await batches.commit(
            connection, 1, run.name, batch=batch, new=new, metrics=[METRICS, METRICS], subject="policy.x"
        )
        members = text("SELECT rollout_id FROM rollouts WHERE group_id = :g ORDER BY member")
        [rollout_id, *_] = (await connection.scalars(members, {"g": first})).all()
        step = {"run_id": 1, "rollout_id": rollout_id, "attempt": 1, "idx": 0}
        await connection.execute(insert(tables.step_marks).values(**step, reason="drift"))
        for call, exit_code in ((0, 1), (1, 0)):
            timed = {"start_s": 0.5, "end_s": 0.75, "exit_code": exit_code, "bytes": 3}
            await connection.execute(
                insert(tables.tool_calls).values(**step, call=call, name="bash", **timed)
            )
        await connection.execute(insert(tables.counters).values(run_id=1, name="steps_stale", value=2))
        assert (await connection.scalar(members, {"g": second})) is not None
    await builders.accepted(engine, run, ["open"])
    await builders.dispatch(engine, run)
    async with open_engine(database_url, Role.READER) as found:
        yield found


def test_the_page_answers_many_questions_and_none_is_overlooked() -> None:
    page = PAGE.read_text()
    assert len(QUERIES) >= 20
    assert len(QUERIES) == page.count("```sql") == page.count("\n### ")


async def test_every_query_answers_with_the_columns_of_the_page(reader: AsyncEngine) -> None:
    empty = set()
    async with reader.connect() as connection:
        # The page's example is a rollout of the demo; here another rollout has that part.
        one = await connection.scalar(text("SELECT min(rollout_id) FROM steps WHERE run_id = 1"))
        for question, recipe in QUERIES.items():
            query = recipe["query"].replace("301", str(one))
            found = await connection.exec_driver_sql(query)
            assert list(found.keys()) == recipe["columns"].split(), question
            if not found.all():
                empty.add(question)
    assert empty == set(NOT_HERE)


async def test_every_query_runs_while_no_group_of_a_run_is_dispatched(
    engine: AsyncEngine, database_url: str
) -> None:
    run = await builders.make_run(engine, small("young"))
    assert run.run_id == 1
    async with open_engine(database_url, Role.READER) as reader, reader.connect() as connection:
        for recipe in QUERIES.values():
            await connection.exec_driver_sql(recipe["query"])
        await builders.accepted(engine, run, ["waits"])
        for recipe in QUERIES.values():
            await connection.exec_driver_sql(recipe["query"])


def without_key(plan: dict[str, Any]) -> Iterator[str]:
    """Tables that a plan reads from end to end."""
    table, node = plan.get("Relation Name"), plan["Node Type"]
    if table and (node == "Seq Scan" or (node.startswith("Index") and "Index Cond" not in plan)):
        yield table
    for part in plan.get("Plans", ()):
        yield from without_key(part)


async def test_no_question_reads_what_grows_with_steps_and_messages_of_every_run(
    engine: AsyncEngine, reader: AsyncEngine
) -> None:
    read = {}
    async with engine.connect() as connection:
        # As for tables that are too large to be read whole: an index is used wherever it fits.
        await connection.execute(text("SET enable_seqscan = off"))
        for question, recipe in QUERIES.items():
            query = f"EXPLAIN (FORMAT JSON) {recipe['query']}"
            (plan,) = (await connection.exec_driver_sql(query)).scalar_one()
            read[question] = set(without_key(plan["Plan"])) - ONE_ROW_EACH
    assert {question: tables for question, tables in read.items() if tables} == {}


async def what_is_rare(engine: AsyncEngine) -> None:
    """Run 1: an evaluation with results, a group that repeats itself, a skipped train step, a success without a good tool call, no signal."""
    async with engine.begin() as connection:
        run = await runs.get_run(connection, "cookbook")
        await dispatch_other(connection, run.run_id, 64)  # the evaluation that stays unanswered
    names = ["one", "two", "two:retry-1"]
    await evaluated(
        engine, run, "held", 0, {"coding": (1.0, 1.0, None, None, 0.0, 0.0)}, size=2, submissions=names
    )
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # rows are immutable
        for statement in (
            "UPDATE attempts SET digest = '\\x07' WHERE rollout_id IN (SELECT rollout_id FROM rollouts WHERE group_id = 1 AND member < 2)",
            'UPDATE train_steps SET metrics = metrics || \'{"applied": false, "skip_reason": "nonfinite"}\' WHERE part = 1',
            "UPDATE tool_calls SET exit_code = 1",
            "UPDATE groups SET state = 'filtered', reason = 'zero_signal' WHERE group_id = 2",
            "INSERT INTO batches (run_id, batch_no, size, state, void_detail) VALUES (1, 1, 2, 'voided', 'its loss is nan')",
            "INSERT INTO transitions (run_id, kind, entity_id, to_state, reason) "
            "SELECT 1, 'batch', batch_id, state, 'quarantined' FROM batches WHERE batch_no = 1",
        ):
            await connection.execute(text(statement))


async def test_rare_cases_are_found_where_they_occur(engine: AsyncEngine, reader: AsyncEngine) -> None:
    await what_is_rare(engine)
    found = {}
    async with reader.connect() as connection:
        for question in NOT_HERE:
            rows = (await connection.exec_driver_sql(QUERIES[question]["query"])).mappings().all()
            assert rows, question
            found[question] = dict(rows[0])
        shares = (await connection.exec_driver_sql(QUERIES[LEARNED]["query"])).mappings().all()
    (learned,) = (row for row in shares if row["label"] == "held")
    (unjudged,) = (row for row in shares if row["label"] != "held")
    repeats, skipped, easy, dull, voided = (found[question] for question in NOT_HERE)
    assert [learned[name] for name in ("tasks", "wanted", "judged", "success")] == [2, 4, 4, 0.5]
    assert [float(learned[name]) for name in ("low", "high")] == pytest.approx(wilson(1, 2), abs=1e-4)
    assert unjudged["wanted"] > 0 and (unjudged["judged"], unjudged["success"]) == (0, None)
    assert (repeats["group_id"], repeats["size"], repeats["different"]) == (1, 4, 3)
    assert (skipped["part"], skipped["skip_reason"]) == (1, "nonfinite")
    assert (easy["task"], easy["went_well"]) == ("a", 0)
    assert (dull["domain"], dull["groups"], dull["performance"]) == ("coding", 1, 0.25)
    assert (voided["batch_no"], voided["reason"], voided["void_detail"]) == (
        1,
        "quarantined",
        "its loss is nan",
    )


async def test_a_summary_says_what_the_tables_say(reader: AsyncEngine) -> None:
    async with reader.connect() as connection:
        query = "SELECT * FROM rollout_summary WHERE run_id = 1 AND batch_no = 0 ORDER BY group_id, member"
        rows = (await connection.execute(text(query))).all()
        assert [(row.performance, row.steps, row.branches, row.failure_class) for row in rows] == [
            (performance, 3, 1, FailureClass.COMPLETED) for performance in (1.0, 0.0, 0.0, 0.0)
        ] * 2
        tokens = "SELECT sum(cardinality(i4(action))) FROM steps WHERE run_id = 1"
        assert sum(row.action_tokens for row in rows) == await connection.scalar(text(tokens))
        groups = (await connection.execute(text("SELECT * FROM group_summary WHERE batch_no = 0"))).all()
        assert [(row.verified, row.solved, row.spread, row.performance) for row in groups] == [
            (4, 1, 1.0, 0.25)
        ] * 2


async def test_the_generation_of_a_rollout_is_its_attempts_and_no_sum_over_calls_that_overlapped(
    engine: AsyncEngine, reader: AsyncEngine
) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # rows are immutable
        await connection.execute(text("UPDATE steps SET t_queue = 5, t_first = 1.5, t_gen = 7"))
        await connection.execute(
            text(
                "UPDATE attempts SET ended = started + interval '8 s', generation_s = 7.5, waiting_s = 0.25 WHERE attempt = 1"
            )
        )
    async with reader.connect() as connection:
        query = "SELECT generation_s, waiting_s, extract(epoch FROM ended - started) AS lasted FROM rollout_summary WHERE batch_no = 0"
        rows = (await connection.execute(text(query))).all()
    assert rows and all((row.generation_s, row.waiting_s) == (7.5, 0.25) for row in rows)
    assert all(row.generation_s + row.waiting_s <= row.lasted for row in rows)


async def test_a_rollout_is_trained_in_the_part_of_the_batch_that_its_group_falls_into(
    engine: AsyncEngine, reader: AsyncEngine
) -> None:
    run = await builders.make_run(engine, small("parts", batch_groups=5, capacity=9))
    made = await builders.ready_groups(engine, run, list("abcde"), builders.Author())
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
        batch = await batches.take(connection, run.run_id, queue_policy("greedy", 9, 0.3), 5, 1)
        assert batch is not None
        new = NewVersion(version=1, parent=0, path="/v1", manifest_sha="11")
        assert await batches.commit(
            connection, run.run_id, run.name, batch=batch, new=new, metrics=[METRICS] * 3, subject="policy.x"
        )
    query = "SELECT DISTINCT group_id, part, train_step FROM trained_in WHERE run_id = :r ORDER BY group_id"
    async with reader.connect() as connection:
        found = (await connection.execute(text(query), {"r": run.run_id})).all()
    cuts = [5 * i // 3 for i in range(4)]  # trainer.update.split_train_steps
    expected = [part for part in range(3) for _ in range(cuts[part], cuts[part + 1])]
    assert [(row.group_id, row.part) for row in found] == list(zip(made, expected, strict=True))
    assert [row.train_step for row in found] == [found[0].train_step + part for part in expected]
