"""`penstock dead`: unusable messages and rows are listed, shown whole, tried again and, if they are messages, dropped."""

import getpass
import json
import secrets
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.bus.nats import NatsBus
from orchestrator.cli.main import app
from orchestrator.contracts.events import TaskSubmitted, encode
from orchestrator.contracts.states import Purpose
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import write_template
from orchestrator.pool.dead_letters import keep_unsendable, tried
from orchestrator.pool.engine import open_engine
from orchestrator.pool.submissions import forget_rejection
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dead_letters import store_dead_letters
from orchestrator.roles.intake import Intake
from orchestrator.settings.config import Config, load
from tests import builders
from tests.integration.audit.audited import no_violations
from tests.waiting import eventually

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.tier("look")]

TASK = {"files": {"task.toml": "", "instruction.md": "Say 7.", "tests/test.sh": "exit 0\n"}}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The intake logs at the same time as the commands, whose output is read here."""
    with capture_logs():
        yield


@pytest.fixture
def home(
    tmp_path: Path, database_url: str, nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A directory with a configuration whose run no other test uses."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    write_template(tmp_path, f"r{secrets.token_hex(4)}", "")
    return tmp_path


async def dead(home: Path, *arguments: str) -> Result:
    """One command, in a thread of its own."""
    return await anyio.to_thread.run_sync(
        partial(CliRunner().invoke, app, ["dead", *arguments, "-c", str(home)])
    )


async def listed(home: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((await dead(home, "list", "--json")).stdout)
    return found


async def acknowledged(url: str) -> bool:
    """Whether the intake has settled every task: an unsettled task comes again, to the next test's intake."""
    client = await nats.connect(url)
    try:
        found = await client.jetstream().consumer_info("TASKS", "tasks")
    finally:
        await client.close()
    return bool(found.num_pending == 0 and found.num_ack_pending == 0)


async def letters(home: Path, count: int) -> list[dict[str, str]]:
    """The dead letters, once their number is `count`."""

    async def so_many() -> bool:
        return len(await listed(home)) == count

    await eventually(so_many)
    return await listed(home)


async def traces(engine: AsyncEngine) -> Sequence[Any]:
    """The history's entries about messages."""
    query = "SELECT * FROM transitions WHERE kind = 'message' ORDER BY transition_id"
    async with engine.connect() as connection:
        return (await connection.execute(text(query))).all()


async def count(engine: AsyncEngine, query: str) -> int:
    async with engine.connect() as connection:
        return int(await connection.scalar(text(query)) or 0)


async def test_a_message_is_shown_whole_published_again_and_dropped(
    home: Path, database_url: str, nats_server: EmbeddedNats
) -> None:
    config: Config = load(home / "penstock.toml")
    async with (
        open_engine(database_url) as engine,
        NatsBus.connect(nats_server.url) as bus,
        anyio.create_task_group() as group,
    ):
        await bus.ensure_streams()
        run = await builders.make_run(engine, config)
        assert (await dead(home, "list")).stdout == "nothing is dead\n"
        group.start_soon(
            Intake(
                OrchestratorContext(run_id=run.run_id, run=run.name, config=config, engine=engine, bus=bus),
                ["shell"],
            ).run
        )
        subject = subjects.tasks(run.name, "coding")
        good = encode(TaskSubmitted(task=TASK, submission="later"))
        await bus.publish(Outgoing(subject=subject, msg_id="new-kind", schema="Hovercraft/1", body=good))
        await bus.publish(Outgoing(subject=subject, msg_id="broken", schema="", body=b"\xff{not json"))

        async def both() -> bool:
            return len(await listed(home)) == 2

        await eventually(both)
        newer, broken = await listed(home)
        assert "unknown schema 'Hovercraft/1'" in newer["reason"] and subject in newer["what"]
        assert newer["id"] in (await dead(home, "list")).stdout
        # Foreign text moves no cursor.
        async with engine.begin() as connection:
            await connection.execute(
                text("UPDATE dead_letters SET reason = E'\\x1b[2J[bold]\\x07' || reason")
            )
        output = (await dead(home, "list")).stdout
        assert "\\x1b[2J[bold]\\x07" in output and "\x1b" not in output and "\x07" not in output
        shown = json.loads((await dead(home, "show", newer["id"])).stdout)
        assert (shown["msg_id"], shown["body"]["submission"]) == ("new-kind", "later")
        assert json.loads((await dead(home, "show", broken["id"])).stdout)["body"] == "\\xff{not json"

        done = await dead(home, "drop", broken["id"], "--reason", "a typo of mine")
        assert (done.exit_code, done.stdout) == (0, f"{broken['id']} is dropped\n")
        (trace,) = await traces(engine)
        who = f"{getpass.getuser()}@{socket.gethostname()}"
        assert (trace.entity_id, trace.to_state, trace.run_id) == (
            int(broken["id"][1:]),
            "dropped",
            run.run_id,
        )
        assert trace.reason.startswith(f"dropped by {who}: a typo of mine; it was {subject} broken: ")
        recorded = (
            f"SELECT count(*) FROM actions WHERE (who, what, reason) = ('{who}', 'drop', 'a typo of mine')"
        )
        assert await count(engine, recorded) == 1
        # It is still of an unknown kind, so it comes back as another dead letter: a retry loses nothing.
        assert (await dead(home, "retry", newer["id"])).exit_code == 0

        async def again() -> bool:
            found = await listed(home)
            return len(found) == 1 and found[0]["id"] not in (newer["id"], broken["id"])

        await eventually(again)
        # Once repaired, the message is accepted.
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE dead_letters SET schema = NULL"))
        assert (await dead(home, "retry", (await listed(home))[0]["id"])).exit_code == 0

        async def taken() -> bool:
            return await count(engine, "SELECT count(*) FROM groups WHERE submission = 'later'") == 1

        await eventually(taken)
        assert await listed(home) == []
        assert [trace.to_state for trace in await traces(engine)] == ["dropped", "retried", "retried"]
        await no_violations(engine, run.name)
        await eventually(partial(acknowledged, nats_server.url))
        group.cancel_scope.cancel()


async def test_a_rejected_task_is_judged_again_when_it_is_retried(
    home: Path, database_url: str, nats_server: EmbeddedNats
) -> None:
    config: Config = load(home / "penstock.toml")
    async with open_engine(database_url) as engine, NatsBus.connect(nats_server.url) as bus:
        await bus.ensure_streams()
        run = await builders.make_run(engine, config)
        context = OrchestratorContext(run_id=run.run_id, run=run.name, config=config, engine=engine, bus=bus)
        event = encode(TaskSubmitted(task=TASK, submission="early", scaffold="mine"))

        async with anyio.create_task_group() as group:
            group.start_soon(Intake(context, ["shell"]).run)
            await bus.publish(
                Outgoing(subject=subjects.tasks(run.name, "coding"), msg_id="early:1", schema="", body=event)
            )
            (first,) = await letters(home, 1)
            assert "unknown scaffold 'mine'" in first["reason"]
            # The cause still exists: the message is rejected as before, and its dead letter comes back.
            assert (await dead(home, "retry", first["id"])).exit_code == 0

            async def back() -> bool:
                return [each["id"] for each in await listed(home)] not in ([], [first["id"]])

            await eventually(back)
            (second,) = await letters(home, 1)
            assert "unknown scaffold 'mine'" in second["reason"]
            await eventually(partial(acknowledged, nats_server.url))
            group.cancel_scope.cancel()
        async with anyio.create_task_group() as group:
            group.start_soon(Intake(context, ["shell", "mine"]).run)
            assert (await dead(home, "retry", second["id"])).exit_code == 0

            async def taken() -> bool:
                return await count(engine, "SELECT count(*) FROM groups WHERE submission = 'early'") == 1

            await eventually(taken)
            await eventually(partial(acknowledged, nats_server.url))
            group.cancel_scope.cancel()
        assert await listed(home) == []
        async with engine.begin() as connection:
            await forget_rejection(connection, run.name, "early")  # it is accepted now, and stays accepted
        assert await count(engine, "SELECT count(*) FROM submissions WHERE status = 'accepted'") == 1
        await no_violations(engine, run.name)


async def test_a_rejected_task_of_another_run_is_judged_again_there_and_an_invalid_id_is_only_published(
    home: Path, database_url: str, nats_server: EmbeddedNats
) -> None:
    config: Config = load(home / "penstock.toml")
    async with (
        open_engine(database_url) as engine,
        NatsBus.connect(nats_server.url) as bus,
        anyio.create_task_group() as group,
    ):
        await bus.ensure_streams()
        ours = await builders.make_run(engine, config)
        other_run = config.model_copy(
            update={"run": config.run.model_copy(update={"name": f"{config.run.name}x"})}
        )
        theirs = await builders.make_run(engine, other_run)
        # One orchestrator reads the tasks of every run. It stores those of other runs that it refuses without a run.
        group.start_soon(
            Intake(
                OrchestratorContext(run_id=ours.run_id, run=ours.name, config=config, engine=engine, bus=bus),
                ["shell"],
            ).run
        )
        event = encode(TaskSubmitted(task=TASK, submission="alike", scaffold="mine"))
        for run in (ours, theirs):
            await bus.publish(
                Outgoing(
                    subject=subjects.tasks(run.name, "coding"),
                    msg_id=f"alike:{run.name}",
                    schema="",
                    body=event,
                )
            )
        odd = encode(TaskSubmitted(task=TASK, submission="a\x00b"))
        await bus.publish(
            Outgoing(subject=subjects.tasks(ours.name, "coding"), msg_id="odd", schema="", body=odd)
        )

        found = await letters(home, 3)
        (other,) = [line for line in found if theirs.name in line["what"]]
        (illegal,) = [line for line in found if "unknown scaffold" not in line["reason"]]
        for letter in (other, illegal):
            assert (await dead(home, "retry", letter["id"])).exit_code == 0

        async def both_back() -> bool:
            ids = {line["id"] for line in await listed(home)}
            return len(ids) == 3 and not ids & {other["id"], illegal["id"]}

        await eventually(both_back)
        rejected = f"SELECT count(*) FROM submissions WHERE status = 'rejected' AND run_id = {ours.run_id}"
        assert await count(engine, rejected) == 1, "the answer of our own run stands"
        await eventually(partial(acknowledged, nats_server.url))
        group.cancel_scope.cancel()


async def test_a_message_that_a_runner_refused_is_listed_shown_published_again_and_dropped(
    home: Path, database_url: str, nats_server: EmbeddedNats
) -> None:
    config: Config = load(home / "penstock.toml")
    async with (
        open_engine(database_url) as engine,
        NatsBus.connect(nats_server.url) as bus,
        anyio.create_task_group() as group,
    ):
        await bus.ensure_streams()
        run = await builders.make_run(engine, config)
        group.start_soon(
            store_dead_letters,
            OrchestratorContext(run_id=run.run_id, run=run.name, config=config, engine=engine, bus=bus),
        )
        subject = subjects.work_rollout(run.name)
        for name in ("one", "other"):
            refused = Outgoing(
                subject=subject, msg_id=f"{run.name}:{name}", schema="RolloutAssigned/1", body=b'{"run": 7}'
            )
            await bus.dead_letter(refused, f"{name} is not an assignment")

        async def ours() -> list[dict[str, str]]:
            return [line for line in await listed(home) if subject in line["what"]]

        async def both() -> bool:
            return len(await ours()) == 2

        await eventually(both)
        one, other = await ours()
        assert (one["reason"], other["reason"]) == ("one is not an assignment", "other is not an assignment")
        shown = json.loads((await dead(home, "show", one["id"])).stdout)
        assert (shown["stream"], shown["body"]) == ("WORK", {"run": 7})
        assert (await dead(home, "retry", one["id"])).exit_code == 0
        async with bus.subscribe(subjects.consume_work_rollout(run.name)) as arriving:
            with anyio.fail_after(60):
                (again,) = await arriving.take(1)
            assert (again.body, again.schema) == (b'{"run": 7}', "RolloutAssigned/1")
            await again.ack()
        assert (await dead(home, "drop", other["id"])).exit_code == 0
        assert await ours() == []
        group.cancel_scope.cancel()


async def test_a_partly_kept_message_is_not_published_again_and_stays(
    home: Path, database_url: str, nats_server: EmbeddedNats
) -> None:
    config: Config = load(home / "penstock.toml")
    async with open_engine(database_url) as engine, NatsBus.connect(nats_server.url) as bus:
        await bus.ensure_streams()
        run = await builders.make_run(engine, config)
        subject = subjects.work_rollout(run.name)
        headers = {
            subjects.HEADER_DEAD_KEPT: "no",
            subjects.HEADER_DEAD_SUBJECT: subject,
            subjects.HEADER_DEAD_REASON: "too large",
            subjects.HEADER_DEAD_BODY_BYTES: "5000000",
        }
        async with anyio.create_task_group() as group:
            group.start_soon(
                store_dead_letters,
                OrchestratorContext(run_id=run.run_id, run=run.name, config=config, engine=engine, bus=bus),
            )
            await bus.publish(
                Outgoing(
                    subject="dead.work",
                    msg_id=f"{run.name}:cut",
                    schema="",
                    body=b'{"run": ',
                    headers=headers,
                )
            )

            async def kept() -> bool:
                return any(subject in line["what"] for line in await listed(home))

            await eventually(kept)
            group.cancel_scope.cancel()
        (letter,) = [line for line in await listed(home) if subject in line["what"]]
        refused = await dead(home, "retry", letter["id"])
        assert (
            refused.exit_code == 1
            and "it is kept in part only: too large (the first 8 of 5,000,000 bytes" in str(refused.exception)
        )
        assert letter in await listed(home)
        assert (await dead(home, "drop", letter["id"])).exit_code == 0


async def test_a_list_reads_no_body(home: Path, database_url: str) -> None:
    run_name = load(home / "penstock.toml").run.name
    async with open_engine(database_url) as engine:
        run = await builders.make_run(engine, load(home / "penstock.toml"))
        async with engine.begin() as connection:
            for msg_id in ("a", "b"):
                await keep_unsendable(
                    connection, run.run_id, f"tasks.{run_name}.coding", "", msg_id, b"x" * 1000, "too large"
                )
    read: list[str] = []

    def note(*call: Any) -> None:
        read.append(call[2].lower())

    event.listen(Engine, "before_cursor_execute", note)
    try:
        lines = await listed(home)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert [(line["what"], line["reason"]) for line in lines] == [
        (f"message tasks.{run_name}.coding", "too large")
    ] * 2
    assert any("from dead_letters" in each for each in read) and any("from groups" in each for each in read)
    assert [each for each in read if "body" in each] == []


@pytest.mark.parametrize("submission", ["one", "o" * 121, "o" * 128])
async def test_a_group_is_shown_with_its_attempts_and_submitted_again_under_a_name_of_its_own(
    home: Path, database_url: str, nats_server: EmbeddedNats, submission: str
) -> None:
    config: Config = load(home / "penstock.toml")
    async with (
        open_engine(database_url) as engine,
        NatsBus.connect(nats_server.url) as bus,
        anyio.create_task_group() as group,
    ):
        await bus.ensure_streams()
        run = await builders.make_run(engine, config)
        group.start_soon(
            Intake(
                OrchestratorContext(run_id=run.run_id, run=run.name, config=config, engine=engine, bus=bus),
                ["shell"],
            ).run
        )
        event = TaskSubmitted(
            task=TASK, submission=submission, purpose=Purpose.EVAL, sampling={"temperature": 0.0}
        )
        await bus.publish(
            Outgoing(
                subject=subjects.tasks(run.name, "coding"),
                msg_id=submission,
                schema=event.schema(),
                body=encode(event),
            )
        )

        async def accepted() -> bool:
            return await count(engine, "SELECT count(*) FROM groups") == 1

        await eventually(accepted)
        async with engine.begin() as connection:
            await connection.execute(
                text("UPDATE groups SET state = 'dead', reason = 'its attempts are used up', ended = now()")
            )
            await connection.execute(
                text(
                    "INSERT INTO attempts (run_id, rollout_id, attempt, epoch, failure_class, reason, log)"
                    " SELECT run_id, rollout_id, 1, 1, 'infra_failure', 'the sandbox died', 'bwrap: killed' FROM rollouts LIMIT 1"
                )
            )
            await connection.execute(
                text(
                    "INSERT INTO resumes (run_id, rollout_id, attempt, epoch, steps, reason, given_back, replay, replayed)"
                    " SELECT run_id, rollout_id, 1, 2, 7, 'the runner died', false, 'continued', 7 FROM attempts"
                )
            )
        (letter,) = await listed(home)
        assert letter["reason"] == "its attempts are used up" and f"group {submission} " in letter["what"]
        shown = json.loads((await dead(home, "show", letter["id"])).stdout)
        (attempt,) = shown["attempts"]
        resumed = {"epoch": 2, "reason": "the runner died", "steps": 7, "replayed": 7, "replay": "continued"}
        assert (attempt["log"], attempt["resumes"]) == ("bwrap: killed", [resumed])
        again = tried(submission)
        assert (again == submission) is (submission == "one")
        for n in (1, 2):
            done = await dead(home, "retry", letter["id"])
            assert (done.exit_code, done.stdout) == (
                0,
                f"{letter['id']} is submitted again as {again}:retry-{n}\n",
            )
        query = (
            f"SELECT count(*) FROM groups WHERE submission LIKE '{again}:retry-%' AND purpose = 'eval' AND state = 'accepted'"
            " AND sampling = '{\"temperature\": 0.0}'"
        )
        assert await count(engine, query) == 2
        assert (
            await count(engine, f"SELECT count(*) FROM groups WHERE submission = '{submission}' AND done")
            == 1
        )
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("show", "x1"),
            "'x1' is not a dead letter: give m and the number of a message, or g and the number of a group",
        ),
        (
            ("show", "m99"),
            "dead letter m99 does not exist: `penstock dead list -c {home}` shows the existing ones",
        ),
        (("retry", "g99"), "dead letter g99 does not exist"),
        (("drop", "g1"), "g1 is the record of a submission's outcome and cannot be dropped"),
    ],
)
async def test_what_is_not_there_is_named(
    home: Path, database_url: str, arguments: tuple[str, str], sentence: str
) -> None:
    async with open_engine(database_url) as engine:
        await builders.make_run(engine, load(home / "penstock.toml"))
    done = await dead(home, *arguments)
    assert done.exit_code == 1 and sentence.format(home=home) in str(done.exception)
