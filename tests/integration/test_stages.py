"""What is unfinished in a run, how late it is, and who holds it up: from rows, without looking through what is done."""

import json
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.config import Config
from orchestrator.contracts.states import Purpose
from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.flow.dispatcher import queue_settings
from orchestrator.flow.overseer import WINDOW_EVERY, Overseer
from orchestrator.home import write_template
from orchestrator.pool import history
from orchestrator.pool.culprits import ROOM, SLOT, culprits, eased, stuck
from orchestrator.pool.engine import open_engine
from orchestrator.pool.presence import LoopReport, ProcessReport, present, tell
from orchestrator.pool.runs import Run
from orchestrator.pool.stages import _STAGES, NAMES, Stage, group_seconds, stages, states
from orchestrator.progress import boarding, looping
from orchestrator.watchdog import Watchdog, WatchdogSettings
from tests import builders
from tests.integration.pool_rig import engine, flow_of, running, small

__all__ = ["engine"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]

LIMIT_S = 60.0


async def look(engine: AsyncEngine, run: Run) -> dict[str, Stage]:
    config = Config.from_json(run.config)
    async with engine.connect() as connection:
        found = await stages(connection, run.run_id, config, queue_settings(config))
    assert tuple(stage.name for stage in found) == NAMES
    return {stage.name: stage for stage in found if stage.open}


async def change(engine: AsyncEngine, statement: str, **parameters: Any) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(statement), parameters)


def process(name: str, *loops: LoopReport, silent_s: float = 0.0, stopped: bool = False) -> ProcessReport:
    return ProcessReport("here", name, 7, silent_s, stopped, loops)


def loop(name: str, **changes: Any) -> LoopReport:
    fields = {
        "item": "",
        "waits_for": "",
        "resting": False,
        "age_s": 0.0,
        "stuck_s": 0.0,
        "ended": "",
        "restarts": 0,
    }
    return LoopReport(name=name, **{**fields, **changes})


async def test_a_run_without_tasks_has_nothing_open(engine: AsyncEngine) -> None:
    assert await look(engine, await builders.make_run(engine, small())) == {}


async def test_each_stage_shows_its_oldest_item_and_how_late_that_is(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [group] = await builders.accepted(engine, run, ["a"], size=2)
    await change(engine, "UPDATE groups SET created = created - interval '90 s'")
    found = await look(engine, run)
    assert set(found) == {"dispatch"} and found["dispatch"].item == f"group {group}"
    assert 90 <= found["dispatch"].late_s < 150 and found["dispatch"].held == ""

    await builders.dispatch(engine, run)
    await change(engine, "UPDATE rollouts SET changed = changed - interval '90 s'")
    found = await look(engine, run)
    assert set(found) == {"lease"} and found["lease"].open == 2 and 90 <= found["lease"].late_s < 150
    await change(engine, "UPDATE rollouts SET not_before = clock_timestamp() + interval '9 s'")
    assert await look(engine, run) == {}, "a retry that is not due is not open"

    for state, stage in (("reported", "settle"), ("finished", "verify")):
        await change(engine, "UPDATE rollouts SET state = :state, not_before = NULL", state=state)
        found = await look(engine, run)
        assert set(found) == {stage} and found[stage].late_s >= 90
    await change(engine, "UPDATE rollouts SET state = 'lost', failure_class = 'poison', reason = 'x'")
    found = await look(engine, run)
    assert set(found) == {"conclude"} and found["conclude"].item == f"group {group}"


async def test_a_server_at_the_version_that_an_evaluation_pins_is_not_behind(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [group] = await builders.accepted(
        engine, run, ["e"], purpose=Purpose.EVAL, pinned_version=0, label="held"
    )
    key = {"run": run.run_id}
    await change(
        engine,
        "insert into policy_versions (run_id, version, path, manifest_sha) values (:run, 0, '/v0', '00'), (:run, 1, '/v1', '11')",
        **key,
    )
    await change(
        engine,
        "insert into rollout_servers (run_id, url, state, version, lease_until)"
        " values (:run, 'http://a', 'ready', 0, clock_timestamp() + interval '1 hour')",
        **key,
    )
    assert "sync" not in await look(engine, run)
    await change(engine, "update rollout_servers set state = 'syncing' where run_id = :run", **key)
    assert (await look(engine, run))["sync"].open == 1
    await change(engine, "update rollout_servers set state = 'ready' where run_id = :run", **key)
    await change(engine, "update groups set state = 'scored' where group_id = :group", group=group)
    assert (await look(engine, run))["sync"].open == 1


async def test_leased_work_is_in_order_for_the_attempts_own_time_and_overdue_after_its_lease(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    await running(engine, run)
    found = await look(engine, run)
    assert set(found) == {"run"} and found["run"].late_s == 0 and found["run"].owner == "test"
    await change(engine, "UPDATE rollouts SET changed = changed - interval '390 s'")
    assert 90 <= (await look(engine, run))["run"].late_s < 150, "timeout_s is 300"
    await change(engine, "UPDATE rollouts SET lease_until = clock_timestamp() - interval '70 s'")
    found = await look(engine, run)
    assert found["reap"].open == 2 and 70 <= found["reap"].late_s < 130


async def test_ready_groups_are_late_only_while_the_window_lets_them_be_taken(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small(window_fraction=0.3))  # W = 1
    first, second = await builders.ready_groups(engine, run, ["a", "b"], builders.Author())
    await change(engine, "UPDATE groups SET ready = ready - interval '90 s'")
    found = (await look(engine, run))["take"]
    assert found.open == 2 and found.late_s >= 90 and found.item == f"group {first}"
    await change(
        engine, "UPDATE groups SET state = 'dispatched', ready = NULL WHERE group_id = :id", id=first
    )
    found = (await look(engine, run))["take"]
    assert (found.open, found.late_s, found.item) == (1, 0.0, f"group {second}")
    assert found.held == f"the window waits for its head, group {first} at 0"


async def test_accepted_groups_that_have_no_room_wait_in_order(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small(capacity=2))
    await builders.accepted(engine, run, ["a", "b"], size=2)
    await builders.dispatch(engine, run)
    await builders.accepted(engine, run, ["c"], size=2)
    await change(
        engine,
        "UPDATE groups SET created = created - interval '900 s', dispatched = dispatched - interval '900 s'",
    )
    found = await look(engine, run)
    assert (found["dispatch"].late_s, found["dispatch"].held) == (
        0.0,
        "the queue is full: 2 groups are in flight, and queue.capacity is 2",
    )
    await change(engine, "UPDATE queue SET admission_open = false")
    found = await look(engine, run)
    assert found["dispatch"].held == "admission is closed"


async def test_nobody_looks_through_what_is_done(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    await builders.accepted(engine, run, ["open"], size=2)
    await builders.dispatch(engine, run)
    await change(
        engine,
        "WITH g AS (INSERT INTO groups (run_id, submission, task_id, domain, scaffold, size, seq, state, reason)"
        " SELECT :run, 'done ' || n, (SELECT min(task_id) FROM tasks), 'coding', 'shell', 2, 10 + n, 'filtered', 'zero_signal'"
        " FROM generate_series(1, 20000) n RETURNING group_id)"
        " INSERT INTO rollouts (run_id, group_id, member, seed, state) SELECT :run, group_id, m, 1, 'verified' FROM g, generate_series(0, 1) m",
        run=run.run_id,
    )  # fmt: skip
    async with engine.connect() as connection:
        connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("VACUUM ANALYZE groups"))
        await connection.execute(text("VACUUM ANALYZE rollouts"))
        explained = await connection.scalars(text(f"EXPLAIN {_STAGES.text}"), {"run": run.run_id})
        plan = "\n".join(explained)
    assert "Seq Scan on groups" not in plan and "Seq Scan on rollouts" not in plan, plan
    assert set(await look(engine, run)) == {"lease"}
    async with engine.connect() as connection:
        assert (await states(connection, run.run_id)) == {"filtered": 20000, "dispatched": 1}
        assert await group_seconds(connection, run.run_id) is None


@pytest.mark.parametrize(("longest", "warnings"), [(100, 1), (1, 0)])
async def test_a_window_too_small_for_the_longest_groups_is_warned_of_once(
    engine: AsyncEngine, longest: int, warnings: int
) -> None:
    run = await builders.make_run(engine, small())
    await builders.accepted(engine, run, ["a"], size=2)
    await change(
        engine,
        "INSERT INTO groups (run_id, submission, task_id, domain, scaffold, size, seq, state, dispatched, ready)"
        " SELECT :run, 'done ' || n, (SELECT min(task_id) FROM tasks), 'coding', 'shell', 2, n, 'trained', now(),"
        " now() + make_interval(secs => CASE n WHEN 7 THEN :longest ELSE 1 END) FROM generate_series(0, 19) n",
        run=run.run_id,
        longest=longest,
    )
    await change(engine, "UPDATE queue SET next_seq = 20")
    overseer = Overseer(flow_of(engine, run))
    with capture_logs() as logs:
        for _ in range(2 * WINDOW_EVERY):
            await overseer.look()
    found = [line["warning"] for line in logs if line["event"] == "window.idles_the_trainer"]
    assert len(found) == warnings and all(
        "raise queue.capacity or queue.window_fraction" in line for line in found
    )


async def test_what_was_refused_is_a_metric(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    overseer, registry = Overseer(flow_of(engine, run)), CollectorRegistry()
    registry.register(overseer.counted)
    for amount in (2, 3):
        async with engine.begin() as connection:
            await history.count(connection, run.run_id, "work_refused", amount)
        await overseer.look()
    assert registry.get_sample_value("penstock_counted", {"name": "work_refused"}) == 5


async def test_a_process_says_in_its_row_what_its_loops_do(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    with boarding("runner") as board, looping("heart") as mine:
        mine.works("rollout 3\x00", on="postgres")
        mine.since -= 70
        dog = Watchdog(board, WatchdogSettings())
        for _ in range(2):
            async with engine.begin() as connection:
                await tell(connection, run.run_id, dog)
    async with engine.connect() as connection:
        (found,) = await present(connection, run.run_id)
    (line,) = found.loops
    assert (found.process, found.kind, found.stopped) == ("runner", "runner", False) and found.silent_s < 60
    assert (line.name, line.item, line.waits_for) == (
        "heart",
        "rollout 3\ufffd",
        "postgres",
    ) and line.stuck_s >= 70
    (sentence,) = stuck([found], LIMIT_S)
    assert "loop heart has made no progress on rollout 3" in sentence and "waiting for postgres" in sentence


LATE = Stage("lease", 3, "rollout 5", 90.0, 90.0)
TRAINING = Stage("commit", 1, "batch 4", 900.0, 0.0, "it is being trained")


@pytest.mark.parametrize(
    ("stage", "processes", "said"),
    [
        (LATE, [], "no runner is running: start one"),
        (LATE, [process("runner", stopped=True)], "no runner is running: start one"),
        (LATE, [process("runner", silent_s=80)], "the runner (pid 7 on here) has not been heard of for 80 s"),
        (LATE, [process("runner", loop("heart"))], "the runner lives, but its loop rollouts is not there"),
        (
            LATE,
            [process("runner-2", loop("rollouts eval", resting=True, waits_for="assignments"))],
            "the runner-2 lives and its loop rollouts eval waits for assignments: rollout 5 never reached it",
        ),
        (
            TRAINING,
            [process("trainer", loop("train", item="batch 4", stuck_s=70.0, waits_for="disk"))],
            "the trainer's loop train has made no progress on batch 4 for 70 s, waiting for disk",
        ),
        (
            TRAINING,
            [process("trainer", loop("train", ended="KeyError: 'x'", stuck_s=0.1))],
            "the trainer's loop train has ended (KeyError: 'x') and nobody began it anew: restart the trainer",
        ),
        (TRAINING, [process("trainer", loop("train", item="batch 4"))], None),
    ],
)  # fmt: skip
def test_the_culprit_is_named_in_one_sentence(
    stage: Stage, processes: list[ProcessReport], said: str | None
) -> None:
    named = culprits([stage], processes, LIMIT_S)
    assert {name: culprit.sentence for name, culprit in named.items()} == ({stage.name: said} if said else {})


def test_whoever_has_no_free_slot_holds_nothing_up() -> None:
    busy = [process("runner", loop("rollouts default", resting=True, waits_for=SLOT))]
    (found,) = eased([LATE], busy)
    assert (found.late_s, found.held) == (0.0, "every slot is busy") and culprits(
        [found], busy, LIMIT_S
    ) == {}


def test_slots_that_wait_for_a_full_disk_are_said_to_and_not_to_be_busy() -> None:
    waiting = loop("rollouts default", resting=True, waits_for=SLOT)
    (found,) = eased([LATE], [process("runner", waiting, loop("attempt", item=ROOM), loop("attempt"))])
    assert found.held == "1 slot waits for room on the sandboxes' disk: free some"


def test_status_prints_the_stages_the_dead_and_the_culprit_and_ends_with_4(
    database_url: str, nats_server: EmbeddedNats, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    write_template(tmp_path, "stuck", "")

    async def fill() -> None:
        async with open_engine(database_url) as engine:
            run = await builders.make_run(engine, small("stuck"))
            await builders.accepted(engine, run, ["a", "b"], size=2)
            await builders.dispatch(engine, run)
            await change(engine, "UPDATE rollouts SET changed = changed - interval '90 s'")
            await change(engine, "UPDATE groups SET state = 'dead', reason = 'poison: x' WHERE seq = 1")

    anyio.run(fill)
    runner = CliRunner()
    said = runner.invoke(app, ["status", "-c", str(tmp_path)], env={"COLUMNS": "160"})
    assert said.exit_code == 4, said.output
    assert "groups: 1 dead, 1 dispatched" in said.stdout and "penstock dead list" in said.stdout
    assert "lease" in said.stdout and "STUCK: no runner is running: start one" in said.stdout
    found = json.loads(runner.invoke(app, ["status", "-c", str(tmp_path), "--json"]).stdout)
    assert found["run"]["groups"] == {"dead": 1, "dispatched": 1} and found["run"]["culprits"] == ["lease"]
    (stage,) = [stage for stage in found["run"]["stages"] if stage["name"] == "lease"]
    assert stage["culprit"]["process"] == "runner" and stage["oldest_s"] >= 90
