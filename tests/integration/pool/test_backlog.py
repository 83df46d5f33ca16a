"""The unfinished work of a run, its lateness, and the responsible process: from rows, without a scan of finished work."""

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs
from typer.testing import CliRunner

from orchestrator.cli import status
from orchestrator.cli.main import app
from orchestrator.contracts.states import BacklogStageName, Purpose, RunState
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import write_template
from orchestrator.pool import batches, transitions
from orchestrator.pool.backlog import (
    _STAGES,
    BacklogStage,
    group_seconds,
    open_batch,
    stages,
    states,
)
from orchestrator.pool.engine import open_engine
from orchestrator.pool.heartbeats import (
    LoopReport,
    ProcessReport,
    present,
    write_heartbeat,
)
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.stall_causes import (
    ROOM,
    SLOT,
    eased,
    stall_causes,
    stuck,
)
from orchestrator.roles.stall_detector import WINDOW_EVERY, StallDetector
from orchestrator.runtime.liveness import loop_registry, track_loop
from orchestrator.runtime.watchdog import Watchdog, WatchdogSettings
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from tests import builders
from tests.integration.pool.rig import context_of, running, small

pytestmark = [pytest.mark.anyio, pytest.mark.services]

LIMIT_S = 60.0


async def look(engine: AsyncEngine, run: StoredRun) -> dict[str, BacklogStage]:
    config = Config.from_json(run.config)
    async with engine.connect() as connection:
        found = await stages(connection, run.run_id, config, QueueSettings.of(config))
    assert tuple(stage.name for stage in found) == tuple(BacklogStageName)
    return {stage.name: stage for stage in found if stage.open}


async def change(engine: AsyncEngine, statement: str, **parameters: Any) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(statement), parameters)


def process(name: str, *loops: LoopReport, silent_s: float = 0.0, stopped: bool = False) -> ProcessReport:
    return ProcessReport(host="here", process=name, pid=7, silent_s=silent_s, stopped=stopped, loops=loops)


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
    assert found.held == f"the window waits for its head, group {first} at 0" and found.waits_for_head


async def test_groups_that_an_open_batch_has_taken_are_shown_to_wait_for_more(
    engine: AsyncEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await builders.make_run(engine, small())
    await builders.ready_groups(engine, run, ["a"], builders.Author())
    async with engine.begin() as connection:
        assert await open_batch(connection, run.run_id, 4) is None
        await batches.take(connection, run.run_id, queue_policy("windowed", 10, 1.0), 4, 2)
        found = await open_batch(connection, run.run_id, 4)
        groups = dict(await states(connection, run.run_id))
    assert found is not None and (found.size, found.taken) == (4, 1)
    status._show(
        None,
        status.StatusReport(
            run=run.name,
            state=RunState.ACTIVE,
            groups=groups,
            dead_letters=0,
            stages=[],
            stall_causes={},
            stuck=[],
            servers=[],
            drains=[],
            no_signal=None,
            open_batch=found,
        ),
        "",
    )
    output = capsys.readouterr().out
    assert "1 group is taken: it waits in batch 0 for 3 more (penstock tasks publish)" in output
    assert "nothing is unfinished" not in output


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


async def test_the_query_of_stages_does_not_scan_finished_work(engine: AsyncEngine) -> None:
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
    )
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
    detector = StallDetector(context_of(engine, run))
    with capture_logs() as logs:
        for _ in range(2 * WINDOW_EVERY):
            await detector.check()
    found = [line["warning"] for line in logs if line["event"] == "window.idles_the_trainer"]
    assert len(found) == warnings and all(
        "begin a new run with a larger queue.capacity and queue.max_staleness or a larger queue.window_fraction"
        in line
        for line in found
    )


async def test_refusals_are_a_metric_while_the_run_has_their_counter(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    detector, registry = StallDetector(context_of(engine, run)), CollectorRegistry()
    registry.register(detector.counted)
    for amount in (2, 3):
        async with engine.begin() as connection:
            await transitions.count(connection, run.run_id, "work_refused", amount)
        await detector.check()
    assert registry.get_sample_value("penstock_counted", {"name": "work_refused"}) == 5
    await change(engine, "DELETE FROM counters")
    await detector.check()
    assert registry.get_sample_value("penstock_counted", {"name": "work_refused"}) is None
    assert registry.get_sample_value("penstock_counted", {"name": "admission_halted"}) == 0


async def test_a_process_says_in_its_row_what_its_loops_do(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    with loop_registry("runner") as registry, track_loop("heartbeat") as mine:
        mine.busy("rollout 3\x00", on="postgres")
        mine.since -= 70
        dog = Watchdog(registry, WatchdogSettings())
        for _ in range(2):
            async with engine.begin() as connection:
                await write_heartbeat(connection, run.run_id, dog)
    async with engine.connect() as connection:
        (found,) = await present(connection, run.run_id)
    (line,) = found.loops
    assert (found.process, found.kind, found.stopped) == ("runner", "runner", False)
    assert found.silent_s < 60 and found.up_s < 60
    assert (line.name, line.item, line.waits_for) == (
        "heartbeat",
        "rollout 3\ufffd",
        "postgres",
    ) and line.stuck_s >= 70
    (sentence,) = stuck([found], LIMIT_S)
    assert (
        "loop heartbeat has made no progress on rollout 3" in sentence and "waiting for postgres" in sentence
    )


LATE = BacklogStage(name=BacklogStageName.LEASE, open=3, item="rollout 5", oldest_s=90.0, late_s=90.0)
TRAINING = BacklogStage(
    name=BacklogStageName.COMMIT,
    open=1,
    item="batch 4",
    oldest_s=900.0,
    late_s=0.0,
    held="it is being trained",
)


@pytest.mark.parametrize(
    ("stage", "processes", "sentence"),
    [
        (LATE, [], "no runner is running: start one"),
        (LATE, [process("runner", stopped=True)], "no runner is running: start one"),
        (LATE, [process("runner", silent_s=80)], "the runner (pid 7 on here) has not reported for 80 s"),
        (LATE, [process("runner", loop("heartbeat"))], "the runner is alive, but without its loop rollouts"),
        (
            LATE,
            [process("runner-2", loop("rollouts eval", resting=True, waits_for="assignments"))],
            "the runner-2 is alive and its loop rollouts eval waits for assignments: rollout 5 never reached it",
        ),
        (
            TRAINING,
            [process("trainer", loop("train", item="batch 4", stuck_s=70.0, waits_for="disk"))],
            "the trainer's loop train has made no progress on batch 4 for 70 s, waiting for disk",
        ),
        (
            TRAINING,
            [process("trainer", loop("train", ended="KeyError: 'x'", stuck_s=0.1))],
            "the trainer's loop train has ended (KeyError: 'x') and was not restarted: restart the trainer",
        ),
        (TRAINING, [process("trainer", loop("train", item="batch 4"))], None),
    ],
)
def test_the_stall_cause_is_named_in_one_sentence(
    stage: BacklogStage, processes: list[ProcessReport], sentence: str | None
) -> None:
    named = stall_causes([stage], processes, LIMIT_S)
    assert {name: stall_cause.sentence for name, stall_cause in named.items()} == (
        {stage.name: sentence} if sentence else {}
    )


@pytest.mark.parametrize("processes", [[], [process("runner", silent_s=3600.0)]])
def test_the_time_in_which_the_run_was_down_holds_nothing_up(processes: list[ProcessReport]) -> None:
    def orchestrator(up_s: float) -> ProcessReport:
        return replace(process("orchestrator"), up_s=up_s)

    assert stall_causes([LATE], [orchestrator(LIMIT_S / 2), *processes], LIMIT_S) == {}
    assert stuck([orchestrator(LIMIT_S / 2), *processes], LIMIT_S) == []
    assert "lease" in stall_causes([LATE], [orchestrator(LIMIT_S * 2), *processes], LIMIT_S)


def test_a_runner_without_a_free_slot_holds_nothing_up() -> None:
    busy = [process("runner", loop("rollouts default", resting=True, waits_for=SLOT))]
    (found,) = eased([LATE], busy)
    assert (found.late_s, found.held) == (0.0, "every slot is busy") and stall_causes(
        [found], busy, LIMIT_S
    ) == {}


def test_slots_that_wait_for_a_full_disk_are_reported_as_waiting_and_not_as_busy() -> None:
    waiting = loop("rollouts default", resting=True, waits_for=SLOT)
    (found,) = eased([LATE], [process("runner", waiting, loop("attempt", item=ROOM), loop("attempt"))])
    assert found.held == "1 slot waits for room on the sandboxes' disk: free some"


def test_status_prints_the_stages_the_dead_and_the_stall_cause_and_ends_with_4(
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
    done = runner.invoke(app, ["status", "-c", str(tmp_path)], env={"COLUMNS": "160"})
    assert done.exit_code == 4, done.output
    assert "groups: 1 dead, 1 dispatched" in done.stdout and "penstock dead list" in done.stdout
    assert "lease" in done.stdout and "STUCK: no runner is running: start one" in done.stdout
    found = json.loads(runner.invoke(app, ["status", "-c", str(tmp_path), "--json"]).stdout)
    assert found["run"]["groups"] == {"dead": 1, "dispatched": 1} and found["run"]["stall_causes"] == [
        "lease"
    ]
    (stage,) = [stage for stage in found["run"]["stages"] if stage["name"] == "lease"]
    assert stage["stall_cause"]["process"] == "runner" and stage["oldest_s"] >= 90
