"""The data of the pages Run, Queue and System: true to the rows, after any history of the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.cli.status import read_run
from orchestrator.contracts.states import Purpose
from orchestrator.deploy import stack
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import Home, write_template
from orchestrator.pool import batches, tables
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.dead_letters import dead_messages
from orchestrator.pool.rewind import rewind
from orchestrator.pool.runs import StoredRun
from orchestrator.queries import curves, spending
from orchestrator.queries.comparison import compared
from orchestrator.queries.evaluations import (
    Evaluation,
    EvaluationProgress,
    evaluations,
    some_evaluations,
)
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.web.evaluation_cache import CountedEvaluations, EvaluationCache
from tests import builders
from tests.integration.pool.rig import rollouts_of, small, take
from tests.integration.queries.evaluations_rig import evaluated
from tests.integration.web.rig import configured, dashboard

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


def reported(step: int, **changes: Any) -> dict[str, Any]:
    """A trainer's report of one train step."""
    return {
        "loss": 0.1 * step,
        "reward": 0.5,
        "action_tokens": 100,
        "tokens_naive": 400,
        "tokens_merged": 100,
        "wall_s": 2.0,
        "cpu_s": 1.0,
        "merge_ratio": 4.0,
        "staleness": {"0": 75, "2": 25},
        "seconds": {"forward": 1.0, "backward": 0.5},
        "domains": {"coding": {"reward": 0.5, "performance": 0.25, "token_share": 1.0, "rollouts": 4}},
        **changes,
    }


async def trained(engine: AsyncEngine, run: StoredRun, first: int, n: int, *, version: int = 1) -> None:
    """`n` batches of two groups, each with two train steps."""
    for i in range(n):
        await builders.ready_groups(engine, run, [f"{first + i}-{name}" for name in "ab"], builders.Author())
        async with engine.begin() as connection:
            batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
            assert batch is not None
            new = NewVersion(
                version=version + i, parent=version + i - 1, path=f"/v{version + i}", manifest_sha="11"
            )
            steps = [reported(2 * (first + i) + part) for part in (1, 2)]
            assert await batches.commit(
                connection, run.run_id, run.name, batch=batch, new=new, metrics=steps, subject="policy.x"
            )


async def started(engine: AsyncEngine, name: str = "run") -> StoredRun:
    run = await builders.make_run(engine, small(name))
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
    return run


def line(found: dict[str, Any], key: str, part: str = "") -> list[float | None]:
    (one,) = [one for one in found["curves"]["lines"] if (one["key"], one["part"]) == (key, part)]
    means: list[float | None] = one["mean"]
    return means


async def test_the_curves_are_what_the_trainer_reported(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await started(engine)
    await trained(engine, run, 0, 3)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        _, heads = await web.get("/api/run")
        assert (heads["train_steps"], heads["batches"], heads["version"], heads["trained_groups"]) == (
            6,
            3,
            3,
            6,
        )
        _, found = await web.get("/api/series")
        assert found["curves"]["steps"] == [1, 2, 3, 4, 5, 6] and found["curves"]["batches"] == [
            0,
            0,
            1,
            1,
            2,
            2,
        ]
        assert line(found, "loss") == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
        assert line(found, "staleness") == [0.5] * 6 and line(found, "staleness_max") == [2.0] * 6
        assert line(found, "trained_tokens_per_s") == [200.0] * 6
        assert (
            line(found, "performance", "coding") == [0.25] * 6
            and line(found, "seconds", "backward") == [0.5] * 6
        )
        rates = line(found, "tokens_per_s")
        assert rates[:2] == [None, None] and all(rate is not None and rate > 0 for rate in rates[2:])
        assert found["spending"]["rollouts"] == 24 and found["spending"]["failures"] == {"completed": 24}
        (everything,) = [one for one in found["spending"]["success"] if one["domain"] == "all"]
        assert sum(everything["n"]) == 24 and all(
            0 <= low <= mean <= high <= 1
            for low, mean, high in zip(everything["low"], everything["mean"], everything["high"], strict=True)
        )
        _, part = await web.get("/api/curves?first=3&last=4")
        assert part["steps"] == [3, 4] and part["last"] == 6


async def test_batches_that_a_rewind_undid_are_in_no_curve(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await started(engine)
    await trained(engine, run, 0, 3)
    async with engine.begin() as connection:
        await rewind(connection, run.run_id, 0, "policy.x", "why", lambda version: True)
    async with engine.connect() as connection:
        found = await curves.curves(connection, run.run_id)
        assert found.batches == [0, 0] and found.steps == [1.0, 2.0]
        assert (found.first, found.last) == (1, 2)
        assert (await compared(connection, run)).train_steps == 2
    await trained(engine, run, 3, 1, version=5)
    async with engine.connect() as connection:
        both = await compared(connection, run)
        assert (both.batches, both.train_steps, both.last_step, both.steps) == (2, 4, 8, [1, 2, 7, 8])
    async with engine.begin() as connection:
        await rewind(connection, run.run_id, 0, "policy.x", "why", lambda version: True)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        _, heads = await web.get("/api/run")
        assert (heads["batches"], heads["train_steps"]) == (1, 2)


async def test_an_evaluation_is_counted_again_only_when_one_of_its_groups_came_or_ended(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await builders.make_run(engine, small())
    counted = count_looks(monkeypatch)
    known = EvaluationCache()
    for version, values in ((0, (1.0, 0.0)), (1, (1.0,))):
        await evaluated(engine, run, "held", version, {"coding": values})
        for _ in range(3):
            async with engine.connect() as connection:
                found = await known.of(connection, run.run_id)
                assert found == CountedEvaluations(await evaluations(connection, run.run_id), 0)
        assert counted == [[each] for each in range(version + 1)]
    await builders.accepted(
        engine, run, ["late"], size=1, purpose=Purpose.EVAL, pinned_version=0, label="held"
    )
    async with engine.connect() as connection:
        assert [each.open for each in (await known.of(connection, run.run_id)).evaluations] == [1, 0]
    assert counted == [[0], [1], [0]]


async def test_one_look_counts_a_bounded_number_of_evaluations_the_newest_first(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await builders.make_run(engine, small())
    for version in range(5):
        await evaluated(engine, run, "held", version, {"coding": (1.0, 0.0)})
    await evaluated(engine, run, "large", 2, {"coding": (1.0, 0.0, 1.0, 0.0, 0.5)})
    counted = count_looks(monkeypatch)
    monkeypatch.setattr("orchestrator.web.evaluation_cache.ROLLOUTS", 4)
    known = EvaluationCache()
    for left, versions in ((4, [3, 4]), (3, [2]), (2, [2]), (0, [0, 1])):
        async with engine.connect() as connection:
            found = await known.of(connection, run.run_id)
        assert (found.uncounted, counted[-1]) == (left, versions)
    async with engine.connect() as connection:
        assert found.evaluations == await evaluations(connection, run.run_id)


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """From now on, record the versions of each count of evaluations."""
    counted: list[list[int]] = []

    async def counting(
        connection: AsyncConnection, run_id: int, among: Sequence[EvaluationProgress]
    ) -> list[Evaluation]:
        counted.append([each.version for each in among])
        return await some_evaluations(connection, run_id, among)

    monkeypatch.setattr("orchestrator.web.evaluation_cache.some_evaluations", counting)
    return counted


async def test_a_long_run_is_read_as_a_sample_and_binned_between_its_extremes(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await started(engine)
    await trained(engine, run, 0, 4)
    monkeypatch.setattr(curves, "SAMPLE", 4)
    monkeypatch.setattr(spending, "SAMPLE", 16)  # rollouts: four try each task
    async with engine.connect() as connection:
        found = await curves.curves(connection, run.run_id, points=2)
        assert (found.stride, found.first, found.last, found.steps) == (2, 1, 8, [4.0, 7.0])  # 3, 5; 6, 8
        (loss,) = [one for one in found.lines if one.key == "loss"]
        assert loss.mean == pytest.approx([0.4, 0.7]) and loss.low == pytest.approx([0.3, 0.6])
        assert loss.high == pytest.approx([0.5, 0.8])
        spent = await spending.spending(connection, run.run_id)
        assert (spent.stride, spent.rollouts, spent.sampled) == (2, 32, 16)


async def test_the_queue_is_drawn_as_the_scheduler_sees_it(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await started(engine)
    await trained(engine, run, 0, 1)
    running, ready = await builders.accepted(engine, run, ["c", "d"], size=2)
    await builders.dispatch(engine, run)
    async with engine.begin() as connection:
        rollouts = await rollouts_of(connection, running)
        assert await take(connection, rollouts[0])
        await connection.execute(
            text("UPDATE rollouts SET state = 'lost', failure_class = 'infra_failure' WHERE rollout_id = :r"),
            {"r": rollouts[1]},
        )
    await builders.finish(engine, run, ready, builders.Author(), performances=[1, 0])
    async with engine.begin() as connection:
        trainer = {"run_id": run.run_id, "host": "here", "process": "trainer", "pid": 7, "loops": []}
        await connection.execute(insert(tables.processes).values(**trainer))
    async with dashboard(configured("run", database_url), tmp_path) as web:
        _, queue = await web.get("/api/queue")
        assert (queue["head"], queue["next_seq"], queue["capacity"], queue["window"]) == (2, 4, 6, 1)
        states = [(one["seq"], one["state"], one["batch_no"]) for one in queue["positions"]]
        assert states == [(0, "trained", 0), (1, "trained", 0), (2, "dispatched", None), (3, "ready", None)]
        head = queue["positions"][2]
        assert (head["size"], head["running"], head["lost"], head["over"], head["waiting"]) == (2, 1, 1, 0, 0)
        assert (
            f"1 group is ready, but the window waits for its head, group {running} at position 2: 1 of its 2"
            in queue["status"]["why"]
        )
        assert [(one["domain"], one["share"], one["served"]) for one in queue["mix"]] == [("coding", 1.0, 4)]


async def test_the_system_names_who_hangs_who_is_silent_and_what_is_owed(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await started(engine)
    await builders.accepted(engine, run, ["e"], purpose=Purpose.EVAL)
    loop = {
        "name": "relay",
        "item": "page",
        "waits_for": "nats",
        "resting": False,
        "age_s": 99.0,
        "stuck_s": 99.0,
        "ended": "",
        "restarts": 1,
    }
    async with engine.begin() as connection:
        processes: dict[str, dict[str, Any]] = {
            "orchestrator": {"loops": [loop]},
            "runner": {"loops": []},
            "trainer": {"loops": [], "stopped": True},
            "verifier": {"loops": [], "last_seen": text("now() - interval '1 hour'")},
        }
        for process, values in processes.items():
            row = {"run_id": run.run_id, "host": "here", "process": process, "pid": 7, **values}
            await connection.execute(insert(tables.processes).values(**row))
        server = {"run_id": run.run_id, "url": "http://127.0.0.1:1", "state": "ready", "version": 0}
        await connection.execute(insert(tables.rollout_servers).values(**server))
    async with dashboard(configured("run", database_url), tmp_path) as web:
        _, page = await web.get("/api/system")
        system = page["system"]
        states = {one["process"]: one["state"] for one in system["processes"]}
        assert states == {
            "orchestrator": "stuck",
            "runner": "lives",
            "trainer": "stopped",
            "verifier": "silent",
        }
        assert any(
            "loop relay has made no progress on page" in sentence for sentence in system["status"]["stuck"]
        )
        assert system["status"]["bad"] and "relay" in system["status"]["why"]
        (server_line,) = system["servers"]
        assert (server_line["version"], server_line["wanted"], server_line["leased"]) == (0, 0, False)
        assert [(one["kind"], one["owed"]) for one in system["outbox"]] == [("policy", 1)]
        assert (
            system["sandboxes"] == {"attempts": 0, "verifications": 0, "no_room": 0}
            and page["supervised"] == []
        )


async def test_a_rollout_server_that_went_with_its_run_has_not_failed(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await started(engine)
    server = {
        "run_id": run.run_id,
        "url": "http://127.0.0.1:1",
        "state": "failed",
        "detail": "it does not answer",
    }
    async with engine.begin() as connection:
        await connection.execute(insert(tables.rollout_servers).values(**server))
    async with dashboard(configured("run", database_url), tmp_path) as web:
        (line,) = (await web.get("/api/system"))[1]["system"]["servers"]
        assert (line["state"], line["detail"]) == ("failed", "it does not answer")
        async with engine.begin() as connection:
            await connection.execute(tables.runs.update().values(state="ended"))
        (line,) = (await web.get("/api/system"))[1]["system"]["servers"]
        assert (line["state"], line["detail"]) == ("stopped", "the run has ended")


async def test_a_rollout_server_of_an_earlier_start_has_stopped_while_that_of_this_one_may_fail(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await started(engine)
    kept = {"run_id": run.run_id, "state": "failed", "detail": "it does not answer"}
    async with engine.begin() as connection:
        await connection.execute(insert(tables.rollout_servers).values(url="http://127.0.0.1:1", **kept))
        held = {**kept, "owner": "gateway", "lease_until": text("now() + interval '1 hour'")}
        await connection.execute(insert(tables.rollout_servers).values(url="http://127.0.0.1:2", **held))
        gateway = {"run_id": run.run_id, "host": "here", "process": "gateway", "pid": 7, "loops": []}
        await connection.execute(insert(tables.processes).values(**gateway))
    async with dashboard(configured("run", database_url), tmp_path) as web:
        before, now = (await web.get("/api/system"))[1]["system"]["servers"]
    assert (before["state"], before["detail"]) == (
        "stopped",
        "no gateway uses it: it belongs to an earlier start",
    )
    assert (now["state"], now["detail"]) == ("failed", "it does not answer")


async def test_dead_messages_are_the_same_many_wherever_they_are_counted(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run, other = await started(engine), await started(engine, "other")
    letter = {"stream": "TASKS", "reason": "no JSON", "deliveries": 1, "body": b"<"}
    async with engine.begin() as connection:
        for number, of in enumerate((run.run_id, run.run_id, None, other.run_id)):
            row = {**letter, "run_id": of, "subject": f"tasks.{number}", "msg_id": str(number)}
            await connection.execute(insert(tables.dead_letters).values(**row))
    config = configured("run", database_url)
    async with dashboard(config, tmp_path) as web:
        _, found = await web.get("/api/letters?limit=1")
        _, whole = await web.get("/api/letters")
    assert (len(found["messages"]), found["all_messages"], found["all_groups"]) == (1, 3, 0)
    assert len(whole["messages"]) == (await read_run(config)).dead_letters == 3
    async with engine.connect() as connection:
        assert len(await dead_messages(connection, run.run_id)) == 3


async def test_an_open_batch_has_the_size_that_it_is_to_have(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await started(engine)
    await builders.ready_groups(engine, run, ["a"], builders.Author())
    async with engine.begin() as connection:
        await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
    wanted = run.config["queue"]["batch_groups"]
    async with dashboard(configured("run", database_url), tmp_path) as web:
        (row,) = (await web.get("/api/batches"))[1]
        _, page = await web.get(f"/api/batches/{row['batch_no']}")
    assert (row["state"], row["taken"], row["size"]) == ("open", 1, wanted)
    assert (len(page["groups"]), page["size"]) == (1, wanted)


async def test_another_run_of_the_database_is_shown_when_it_is_named(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await started(engine)
    await started(engine, "other")
    async with dashboard(configured("run", database_url), tmp_path) as web:
        _, me = await web.get("/api/me")
        assert (me["home"], [one["name"] for one in me["runs"]]) == ("run", ["other", "run"])
        assert (await web.get("/api/run?run=other"))[1]["run"] == "other"
        await web.post("/api/steer/pause?run=other")
        assert (
            len((await web.get("/api/actions?run=other"))[1]) == 1
            and (await web.get("/api/actions"))[1] == []
        )


async def test_penstock_up_starts_it_and_tells_where_it_is(
    database_url: str, nats_server: EmbeddedNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    write_template(tmp_path, "first", "")
    home = Home.at(tmp_path)
    started = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def up() -> None:
            await stack.up(home, only=("web",), on_started=lambda config: started.set())

        tasks.start_soon(up)
        with anyio.fail_after(60):
            await started.wait()
        address = home.web_url_file.read_text().partition("/?token=")[0]
        headers = {"Authorization": f"Bearer {home.web_token.read_text().strip()}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{address}/api/system", headers=headers) as got,
        ):
            page = await got.json()
        assert [(one["name"], one["state"]) for one in page["supervised"]] == [("web", "ready")]
        tasks.cancel_scope.cancel()
