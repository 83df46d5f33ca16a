"""Actions of people at the dashboard: done through the data pool's own functions, and recorded with author, act, before, after and reason."""

import secrets
from pathlib import Path

import anyio
import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.events import TaskSubmitted, encode
from orchestrator.contracts.states import FailureClass, FilterReason, GroupState, Purpose, RolloutState
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool import (
    batches,
    dead_letters,
    steer,
    tables,
    transitions,
)
from orchestrator.pool.dispatch import view_queue
from orchestrator.pool.leases import heartbeat
from orchestrator.pool.runs import StoredRun, begin_end, keep_process_config
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dispatcher import dispatch
from orchestrator.roles.intake import Intake
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from orchestrator.settings.newest_start import kept_values
from tests import builders
from tests.integration.audit.audited import no_violations
from tests.integration.pool.rig import OWNER, context_of, group_state, rollout_row, running, small
from tests.integration.web.rig import Dashboard, configured, dashboard
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

TASK = {"files": {"task.toml": "", "instruction.md": "Say 7.", "tests/test.sh": "exit 0\n"}}


async def last_action(web: Dashboard) -> dict[str, object]:
    """The newest action, without its id and time, and without its author: that is the user who runs the tests."""
    status, found = await web.get("/api/actions")
    assert status == 200
    newest: dict[str, object] = found[0]
    assert str(newest.pop("who")).endswith(" (dashboard)") and newest.pop("action_id") and newest.pop("at")
    return newest


async def test_paused_admission_dispatches_nothing_until_it_is_resumed(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    context = context_of(engine, run)
    await builders.accepted(engine, run, ["a"], size=2)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        status, answer = await web.post("/api/steer/pause", {"reason": "the disk is full"})
        assert (status, answer) == (200, {"done": "Admission is paused; the run is drained."})
        assert await last_action(web) == {
            "what": "pause",
            "target": "admission",
            "before": {"open": True},
            "after": {"open": False},
            "reason": "the disk is full",
        }
        async with engine.begin() as connection:
            assert await dispatch(connection, context) == 0
        why = (await web.get("/api/queue"))[1]["status"]["why"]
        assert why.startswith("Admission is paused by ") and "the disk is full" in why
        assert (await web.post("/api/steer/pause"))[0] == 409  # a second person learns of the first
        assert (await web.post("/api/steer/resume", {"reason": "room again"}))[0] == 200
        assert (await last_action(web))["what"] == "resume"
        async with engine.begin() as connection:
            assert await dispatch(connection, context) == 2
        status, answer = await web.post("/api/steer/pause")
        assert answer == {"done": "Admission is paused; 2 rollouts run to their end."}


async def test_a_run_that_ends_is_not_opened_again_by_a_person(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    async with engine.begin() as connection:
        await begin_end(connection, run.run_id, "requested by a person")
    async with dashboard(configured("run", database_url), tmp_path) as web:
        for order, sentence in (
            ("pause", "the run is ending"),
            ("resume", "not paused by a person: the run ends"),
            ("weights", "the run is ending"),
        ):
            status, answer = await web.post(
                f"/api/steer/{order}", {"domains": None} if order == "weights" else {}
            )
            assert status == 409 and sentence in answer["error"]
        assert (await web.get("/api/actions"))[1] == []


async def test_a_cancelled_group_is_filtered_and_its_rollouts_lose_their_leases(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    held = await running(engine, run)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        group_id = held[0].group_id
        status, answer = await web.post("/api/steer/cancel", {"group": group_id, "reason": "a bad task"})
        assert (status, answer["done"]) == (200, f"Group {group_id} is cancelled.")
        assert await group_state(engine, group_id) == (GroupState.FILTERED, FilterReason.CANCELLED)
        assert await last_action(web) == {
            "what": "cancel",
            "target": f"group {group_id}",
            "before": {"state": "dispatched"},
            "after": {"state": "filtered", "reason": "cancelled"},
            "reason": "a bad task",
        }
        async with engine.begin() as connection:
            epochs = {one.rollout_id: one.epoch for one in held}
            kept = await heartbeat(connection, run.run_id, OWNER, epochs, 60.0)
        assert kept == set()
        for one in held:
            row = await rollout_row(engine, one.rollout_id)
            assert (row.state, row.failure_class) == (RolloutState.LOST, FailureClass.CANCELLED)
        status, answer = await web.post("/api/steer/cancel", {"group": group_id})
        assert status == 409 and answer["error"] == f"group {group_id} is over: it is filtered"
    await no_violations(engine, run.name)


async def test_groups_of_every_open_state_are_cancelled_but_not_those_in_a_batch(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    ready = await builders.ready_groups(engine, run, ["a", "b", "c"], builders.Author())
    async with engine.begin() as connection:
        batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
    assert batch is not None
    [accepted] = await builders.accepted(engine, run, ["d"])
    [evaluation] = await builders.accepted(engine, run, ["e"], purpose=Purpose.EVAL)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        status, answer = await web.post("/api/steer/cancel", {"group": ready[0]})
        assert status == 409 and "a batch has taken it" in answer["error"]
        for group_id in (ready[2], accepted, evaluation):
            assert (await web.post("/api/steer/cancel", {"group": group_id}))[0] == 200
            assert await group_state(engine, group_id) == (GroupState.FILTERED, FilterReason.CANCELLED)
        other = await builders.make_run(engine, small("other"))
        [foreign] = await builders.accepted(engine, other, ["a"])
        assert (await web.post("/api/steer/cancel", {"group": foreign}))[0] == 409  # of another run


async def served(engine: AsyncEngine, run: StoredRun) -> dict[str, int]:
    async with engine.connect() as connection:
        return dict((await view_queue(connection, run.run_id, Config.from_json(run.config).stage)).served)


async def test_new_weights_hold_for_what_is_dispatched_next_and_go_with_their_stage(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    course = {
        "name": "first",
        "domains": {"coding": 1, "general": 1},
        "end_batches": 1,
        "then": [{"name": "second", "domains": {"coding": 1, "general": 1}}],
    }
    config = Config.model_validate(
        {
            "run": {"name": "run"},
            "queue": {"batch_groups": 8, "group_size": 2, "capacity": 8},
            "stage": course,
            "rollout": {"slots": 100},
        }
    )
    run = await builders.make_run(engine, config)
    for domain in ("coding", "general"):
        await builders.accepted(engine, run, [f"{domain}{i}" for i in range(20)], domain=domain, size=2)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        status, answer = await web.post(
            "/api/steer/weights", {"domains": {"coding": 3, "general": 1}, "reason": "more code"}
        )
        assert status == 200, answer
        assert await last_action(web) == {
            "what": "reweigh",
            "target": "stage first",
            "reason": "more code",
            "before": {"stage": "first", "domains": {"coding": 1.0, "general": 1.0}},
            "after": {"stage": "first", "domains": {"coding": 3, "general": 1}},
        }
        async with engine.begin() as connection:
            assert await dispatch(connection, context_of(engine, run)) == 16
        assert await served(engine, run) == {"coding": 6, "general": 2}
        shown = {one["domain"]: one["share"] for one in (await web.get("/api/queue"))[1]["mix"]}
        assert shown == {"coding": 0.75, "general": 0.25}
        for weights, why in (
            ({"coding": 3}, "say a weight for 'general' too"),
            ({}, "say a weight for 'coding', 'general' too"),
            ({"coding": 3, "general": 0}, "must be above 0"),
            ({"coding": 3, "general": -1}, "must be above 0"),
            (
                {"coding": 10**400, "general": 1},
                "the weight of 'coding' must be above 0 and at most a million",
            ),
            ({"coding": 3, "general": 1, "agent": 1}, "takes no domain 'agent'"),
        ):
            status, answer = await web.post("/api/steer/weights", {"domains": weights})
            assert status == 409 and why in answer["error"]
        async with engine.connect() as connection:
            second = config.stage.model_copy(update={"name": "another", "then": ()})
            # A stage of another name: its own weights.
            view = await view_queue(connection, run.run_id, second)
            assert view.stage is not None and view.stage.domains == {"coding": 1, "general": 1}
        assert (await web.post("/api/steer/weights", {"domains": None}))[0] == 200
        shown = {one["domain"]: one["share"] for one in (await web.get("/api/queue"))[1]["mix"]}
        assert shown == {"coding": 0.5, "general": 0.5}


async def test_dead_letters_are_shown_retried_and_dropped(
    engine: AsyncEngine, database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    name = f"r{secrets.token_hex(4)}"
    config = configured(name, database_url, nats_server.url)
    subject = subjects.tasks(name, "coding")
    event = TaskSubmitted(task=TASK, submission="one")
    junk = b'{"hello": "<script>alert(1)</script>\\u202e"}'
    async with (
        NatsBus.connect(nats_server.url, name="test") as bus,
        dashboard(config, tmp_path) as web,
        anyio.create_task_group() as tasks,
    ):
        await bus.ensure_streams()
        run = await builders.make_run(engine, config)
        tasks.start_soon(
            Intake(
                OrchestratorContext(run_id=run.run_id, run=name, config=config, engine=engine, bus=bus),
                ["shell"],
            ).run
        )
        async with engine.begin() as connection:
            for msg_id, body in (("one", encode(event)), ("two", junk)):
                letter = dead_letters.Letter(
                    run_id=run.run_id,
                    stream="TASKS",
                    subject=subject,
                    schema=event.schema(),
                    msg_id=msg_id,
                    reason="unreadable",
                    deliveries=3,
                    body=body,
                )
                assert await dead_letters.store(connection, letter, counted=run.run_id)
        _, found = await web.get("/api/letters")
        second, first = (line["letter"] for line in found["messages"])
        _, whole = await web.get(f"/api/letters/{second}")
        assert (
            "<script>alert(1)</script>" in whole["body"]
            and whole["reason"] == "unreadable"
            and not whole["cut"]
        )

        status, answer = await web.post(
            "/api/steer/retry", {"letter": first, "reason": "the schema is known now"}
        )
        assert (status, answer["done"]) == (200, f"{first} is published again to {subject}.")
        action = await last_action(web)
        assert (action["what"], action["target"]) == ("retry", f"message {first[1:]}")
        found = await eventually(lambda: accepted_groups(engine, run), every_s=0.05)

        assert (await web.post("/api/steer/drop", {"letter": second, "reason": "junk"}))[0] == 200
        assert (await last_action(web))["what"] == "drop"
        assert (await web.get("/api/letters"))[1]["messages"] == []
        assert (await web.post("/api/steer/drop", {"letter": second}))[0] == 404

        async with engine.begin() as connection:
            assert await transitions.move_group(
                connection, found[0], GroupState.ACCEPTED, GroupState.DEAD, reason="attempts used up"
            )
        (line,) = (await web.get("/api/letters"))[1]["groups"]
        assert (line["letter"], line["reason"]) == (f"g{found[0]}", "attempts used up")
        assert "instruction.md" in (await web.get(f"/api/letters/{line['letter']}"))[1]["body"]
        status, answer = await web.post("/api/steer/retry", {"letter": line["letter"]})
        assert (status, answer["done"]) == (200, f"{line['letter']} is submitted again as one:retry-1.")
        assert (await last_action(web))["after"] == {"submission": "one:retry-1"}
        assert len(await accepted_groups(engine, run)) == 1
        tasks.cancel_scope.cancel()


async def test_the_dead_letter_of_another_run_is_not_dropped_or_retried(
    engine: AsyncEngine, database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    config = configured("here", database_url, nats_server.url)
    here = await builders.make_run(engine, config)
    there = await builders.make_run(engine, configured("there", database_url))
    async with engine.begin() as connection:
        for of in (there.run_id, None):
            letter = dead_letters.Letter(
                run_id=of,
                stream="TASKS",
                subject=f"tasks.{of}",
                schema=None,
                msg_id=f"of {of}",
                reason="unreadable",
                deliveries=3,
                body=b"junk",
            )
            assert await dead_letters.store(connection, letter, counted=there.run_id)
    async with dashboard(config, tmp_path) as web:
        theirs, nobodys = (
            line["letter"]
            for line in sorted(
                (await web.get("/api/letters?run=there"))[1]["messages"],
                key=lambda line: int(line["letter"][1:]),
            )
        )
        for order in ("drop", "retry"):
            status, answer = await web.post(f"/api/steer/{order}", {"letter": theirs})
            assert (status, answer["error"].partition(f" {theirs}")[0]) == (404, "dead letter")
        # Like a retry whose dead letter belonged to another run by the time it was published.
        async with engine.begin() as connection:
            assert not await steer.retried(connection, here.run_id, int(theirs[1:]), "me", "late")
        assert (await web.get("/api/actions"))[1] == []
        assert len((await web.get("/api/letters?run=there"))[1]["messages"]) == 2
        assert (await web.post("/api/steer/drop", {"letter": nobodys}))[0] == 200  # it belongs to every run
        assert (await web.post("/api/steer/drop?run=there", {"letter": theirs}))[0] == 200


async def accepted_groups(engine: AsyncEngine, run: StoredRun) -> list[int]:
    async with engine.connect() as connection:
        query = select(tables.groups.c.group_id).where(
            tables.groups.c.run_id == run.run_id, tables.groups.c.state == GroupState.ACCEPTED
        )
        return list((await connection.scalars(query)).all())


async def test_without_a_bus_a_retry_is_refused_and_the_letter_stays(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    async with engine.begin() as connection:
        letter = dead_letters.Letter(
            run_id=run.run_id,
            stream="TASKS",
            subject=subjects.tasks("run", "coding"),
            schema=None,
            msg_id="one",
            reason="why",
            deliveries=1,
            body=b"{}",
        )
        await dead_letters.store(connection, letter, counted=run.run_id)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        letter_id = (await web.get("/api/letters"))[1]["messages"][0]["letter"]
        status, answer = await web.post("/api/steer/retry", {"letter": letter_id})
        assert status == 503 and "NATS" in answer["error"]
        assert len((await web.get("/api/letters"))[1]["messages"]) == 1
        assert (await web.get("/api/actions"))[1] == []


async def test_an_order_and_its_record_are_one_transaction(
    engine: AsyncEngine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await builders.make_run(engine, small())

    async def fails(*args: object, **more: object) -> None:
        raise ValueError("no room for the record")

    monkeypatch.setattr("orchestrator.pool.steer.record", fails)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        status, answer = await web.post("/api/steer/pause")
        assert (status, answer["error"]) == (400, "no room for the record")
        async with engine.connect() as connection:
            query = select(tables.queue.c.admission_open).where(tables.queue.c.run_id == run.run_id)
            assert await connection.scalar(query) is True


async def test_two_people_who_pause_at_once_leave_one_action(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await builders.make_run(engine, small())
    async with dashboard(configured("run", database_url), tmp_path) as web:
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await web.post("/api/steer/pause"))[0])

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
        assert sorted(answers) == [200, 409, 409, 409, 409]
        assert len((await web.get("/api/actions"))[1]) == 1


async def test_what_drains_is_ordered_shown_recorded_and_taken_back(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    url = "http://127.0.0.1:9"
    async with engine.begin() as connection:
        process = {"run_id": run.run_id, "host": "here", "pid": 7, "loops": []}
        for name in ("runner", "gateway", "trainer"):
            await connection.execute(tables.processes.insert().values(**process, process=name))
        later = text("now() + interval '1 hour'")
        await connection.execute(
            tables.rollout_servers.insert().values(run_id=run.run_id, url=url, lease_until=later)
        )
    async with dashboard(configured("run", database_url), tmp_path) as web:

        async def shown(what: str, name: str) -> tuple[object, object]:
            lines = (await web.get("/api/system"))[1]["system"][what]
            (line,) = [one for one in lines if name in (one.get("process"), one.get("url"))]
            return line["state"], line["left"]

        runner = {"kind": "runner", "id": "runner@here", "reason": "an upgrade"}
        status, answer = await web.post("/api/steer/drain", runner)
        assert (status, answer) == (
            200,
            {"done": "The runner runner takes no new work and finishes its current work."},
        )
        assert await last_action(web) == {
            "what": "drain",
            "target": "runner runner",
            "before": {"draining": False},
            "after": {"draining": True},
            "reason": "an upgrade",
        }
        assert await shown("processes", "runner") == ("draining", None)
        async with engine.begin() as connection:
            named = tables.processes.c.process
            await connection.execute(
                tables.processes.update().where(named == "runner").values(holds={"self": 0})
            )
            await connection.execute(
                tables.processes.update().where(named == "gateway").values(holds={url: 2})
            )
        assert await shown("processes", "runner") == ("drained", 0)
        assert (await web.post("/api/steer/undrain", runner))[0] == 200
        assert await shown("processes", "runner") == ("lives", None)
        assert (await web.post("/api/steer/undrain", runner))[0] == 409
        for body, status, why in (
            ({"kind": "runner", "id": "runner-2"}, 409, "known: runner"),
            ({"kind": "trainer", "id": "trainer"}, 400, "kind must be one of runner, gateway, server"),
            ({"kind": "runner"}, 400, "id the name of one"),
            ({"kind": "server", "id": url}, 409, "no server is left"),
            ({"kind": "server", "id": url, "last": "yes"}, 400, "last must be"),
        ):
            found, answer = await web.post("/api/steer/drain", body)
            assert found == status and why in answer["error"], answer
        assert (await web.post("/api/steer/drain", {"kind": "server", "id": url, "last": True}))[0] == 200
        assert (await shown("servers", url))[1] is None  # its gateway does not know this order yet
        async with engine.begin() as connection:
            await connection.execute(
                tables.processes.update().where(named == "gateway").values(holds={url: 2})
            )
        assert (await shown("servers", url))[1] == 2


@pytest.mark.parametrize("began_so", [True, False], ids=["as it began", "as its newest start has it"])
async def test_a_drain_in_another_run_follows_the_settings_of_that_run(
    engine: AsyncEngine, database_url: str, tmp_path: Path, *, began_so: bool
) -> None:
    await builders.make_run(engine, small())
    other = configured("other", database_url, servers={"evaluation": 1, "embedded": 2})
    run = await builders.make_run(engine, other if began_so else configured("other", database_url))
    if not began_so:
        async with engine.begin() as connection:
            await keep_process_config(connection, run.run_id, kept_values(other))
    url = "http://127.0.0.1:8"
    async with engine.begin() as connection:
        for each in (url, "http://127.0.0.1:9"):
            later = text("now() + interval '1 hour'")
            await connection.execute(
                tables.rollout_servers.insert().values(run_id=run.run_id, url=each, lease_until=later)
            )
    async with dashboard(configured("run", database_url), tmp_path) as web:
        order = {"kind": "server", "id": url}
        status, answer = await web.post("/api/steer/drain?run=other", order)
        assert status == 409 and "no server is left for rollouts" in answer["error"], answer
        assert 'send "last": true' in answer["error"] and "--yes" not in answer["error"]
        assert (await web.post("/api/steer/drain?run=other", {**order, "last": True}))[0] == 200
        assert (await web.post("/api/steer/undrain?run=other", order))[0] == 200


async def test_an_unknown_key_of_an_order_is_refused_by_its_name_and_nothing_is_done(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    [group] = await builders.accepted(engine, run, ["a"])
    async with dashboard(configured("run", database_url), tmp_path) as web:
        for path, body, key in (
            ("pause", {"raeson": "x"}, "raeson"),
            ("resume", {"group": 1}, "group"),
            ("cancel", {"group": group, "force": True}, "force"),
            ("weights", {"domains": {"a": 1}, "stage": "main"}, "stage"),
            ("drop", {"letter": "m7", "all": True}, "all"),
            ("retry", {"letter": "m7", "as": "x"}, "as"),
            ("drain", {"kind": "runner", "id": "runner", "wait": True}, "wait"),
            ("undrain", {"kind": "runner", "id": "runner", "last": True}, "last"),
        ):
            status, answer = await web.post(f"/api/steer/{path}", body)
            assert status == 400 and f"unknown key '{key}'" in answer["error"], (path, answer)
        status, answer = await web.post("/api/steer/pause?rnu=other", {})
        assert status == 400 and "unknown parameter 'rnu'" in answer["error"]
        status, answer = await web.post("/api/steer/weights", {})
        assert status == 400 and "domains must be given" in answer["error"]
        assert (await web.get("/api/actions"))[1] == []
        assert (await group_state(engine, group))[0] is GroupState.ACCEPTED
