"""Large tasks over a real bus: their blobs, the wait for them, a wiped stream, a plain client, and what reaches a runner."""

import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.audit.i1_blobs import BLOBS
from orchestrator.blobs import send
from orchestrator.blobs.cache import BlobCache
from orchestrator.blobs.send import missing_blobs, send_blobs
from orchestrator.blobs.task_files import BlobsMissing, TaskFiles
from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import SubmissionStatus
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool import blobs as pool_blobs
from orchestrator.pool import tables
from orchestrator.publish import Answer, PublishOptions, blobs_of, publish_tasks
from orchestrator.roles import blobs as role
from orchestrator.roles import intake
from orchestrator.roles.blobs import answer_missing, store_blobs
from orchestrator.roles.intake import Intake
from orchestrator.runtime import failpoints
from orchestrator.tasks.harbor import Task, load
from tests.guides import blocks
from tests.integration.audit.audited import no_violations
from tests.integration.roles.rig import Role, Stage, playing, staged, until

pytestmark = [pytest.mark.anyio, pytest.mark.tier("roles")]


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(engine, nats_server.url, tasks={"cache_dir": str(tmp_path / "intake")}) as stage:
        yield stage


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """1 MB: a file of two blobs, a directory of small files, a link and an empty directory."""
    Task.from_files(
        {
            "task.toml": b"",
            "instruction.md": b"Say 7.",
            "tests/test.sh": b"exit 0\n",
            "tests/big": b"t" * 10_000,
        }
    ).write(tmp_path / "task")
    files = tmp_path / "task" / "environment" / "files"
    (files / "src").mkdir(parents=True)
    for number in range(30):
        (files / "src" / f"f{number}.py").write_text(f"# {number}\n" * 50)
    (files / "data.bin").write_bytes(os.urandom(1_200_000))
    (files / "empty").mkdir()
    (files / "to").symlink_to("src/f1.py")
    return load(tmp_path / "task")


def roles(stage: Stage, *, blobs: bool = True) -> list[Role]:
    found: list[Role] = [Intake(stage.context, ["shell"]).run]
    return (
        [*found, partial(store_blobs, stage.context), partial(answer_missing, stage.context)]
        if blobs
        else found
    )


async def stored(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return {sha.hex() for sha in (await connection.execute(select(tables.blobs.c.sha))).scalars()}


async def published(stage: Stage, task: Task) -> Answer:
    event = PublishOptions().event(task)
    answers = await publish_tasks(stage.bus, stage.run.name, [event], 60.0, blobs=blobs_of([task]))
    [answer] = answers.values()
    return answer


async def test_a_large_task_is_accepted_with_its_blobs_and_a_runner_reads_the_same_files(
    stage: Stage, task: Task, tmp_path: Path
) -> None:
    async with playing(roles(stage)):
        assert await published(stage, task) == (SubmissionStatus.ACCEPTED, None)
        assert await stored(stage.context.engine) == set(task.packed.parts)
        assert await missing_blobs(stage.bus, [*task.packed.parts, "0" * 64]) == {"0" * 64}
        # Published under another label, nothing is sent twice.
        sent: list[tuple[int, int]] = []
        await send_blobs(stage.bus, task.packed.parts, sent=lambda *numbers: sent.append(numbers))
        assert sent == [(0, 0)]
    async with stage.context.engine.connect() as connection:
        row = (await connection.execute(select(tables.tasks.c.body, tables.tasks.c.sha))).one()
    assert row.sha.hex() == task.content_hash
    for directory in ("cold", "warm"):
        cache = BlobCache(tmp_path / "cache", 100 << 20)
        read = await TaskFiles(stage.context.engine, cache).task(row.body)
        assert {path: file.data for path, file in read.files.items()} == {
            path: file.data for path, file in task.files.items()
        }, directory
        assert (read.bundle.links, read.bundle.directories) == (task.bundle.links, task.bundle.directories)
        assert read.content_hash == task.content_hash


async def test_a_task_waits_for_its_blobs_whichever_arrives_first(stage: Stage, task: Task) -> None:
    [(domain, event)] = [PublishOptions().event(task)]
    async with playing(roles(stage)):
        await stage.send(subjects.tasks(stage.run.name, domain), event)
        await stage.reaches(0, "submissions")
        await send_blobs(stage.bus, task.packed.parts)
        await stage.reaches(1, "submissions", status="accepted")


async def test_a_task_whose_blobs_never_arrive_is_refused_and_accepted_when_it_comes_again_with_them(
    stage: Stage, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "BLOB_TRIES", 3)
    event = PublishOptions().event(task)
    async with playing(roles(stage)):
        [(status, reason)] = (await publish_tasks(stage.bus, stage.run.name, [event], 60.0)).values()
        assert (
            status is SubmissionStatus.REJECTED
            and reason
            and "never arrived: publish each to blobs.<its sha256>" in reason
        )
        assert await stage.count("submissions") == 0
        assert await published(stage, task) == (SubmissionStatus.ACCEPTED, None)


async def test_a_task_that_the_cache_cannot_hold_is_refused_with_the_reason_and_holds_up_no_other(
    stage: Stage, task: Task, tmp_path: Path
) -> None:
    """Each look at its files fails, as in a directory that this user cannot write."""
    answers: list[Answer] = []

    async def publish() -> None:
        answers.append(await published(stage, task))

    async with playing(roles(stage)), anyio.create_task_group() as publishing:
        shutil.rmtree(tmp_path / "intake")
        (tmp_path / "intake").touch()
        publishing.start_soon(publish)
        for number in itertools.count():
            if answers:
                break
            await stage.submit(f"other-{number}")
            await stage.reaches(1, "submissions", submission=f"other-{number}", status="accepted")
    [(status, reason)] = answers
    assert status is SubmissionStatus.REJECTED and reason is not None
    assert "its handling failed" in reason and str(tmp_path / "intake") in reason


async def test_streams_that_are_wiped_while_a_task_is_published_lose_nothing(
    stage: Stage, task: Task
) -> None:
    event = PublishOptions().event(task)
    await send_blobs(stage.bus, task.packed.parts)
    await stage.send(subjects.tasks(stage.run.name, event[0]), event[1])
    for stream in ("BLOBS", "TASKS"):
        await stage.wipe(stream)
    async with playing(roles(stage)):
        assert await published(stage, task) == (SubmissionStatus.ACCEPTED, None)
        await stage.wipe("BLOBS")
        assert await stored(stage.context.engine) == set(task.packed.parts)


async def test_a_blob_under_a_wrong_name_or_too_large_is_a_dead_letter(stage: Stage) -> None:
    async with playing(roles(stage)):
        for body, sha in ((b"x", "0" * 64), (b"y" * 900_001, hashlib.sha256(b"y" * 900_001).hexdigest())):
            await stage.bus.publish(Outgoing(subject=subjects.blob(sha), msg_id=sha, schema="", body=body))

        async def both() -> bool:
            return len(await stage.reasons()) == 2

        await until(both)
    assert await stage.reasons() == [
        "the subject is not blobs.<sha256 of the content>, in 64 digits of 0-9 and a-f",
        "a blob has at most 900,000 bytes, not 900,001: send the file in parts",
    ]


async def test_any_nats_client_publishes_a_directory_in_25_lines(
    stage: Stage, task: Task, tmp_path: Path
) -> None:
    # The guide's own program, which names the run `first` and tasks/large.
    (program,) = [
        each.text for each in blocks("ops/guides/publish-tasks.md") if "async def tree" in each.text
    ]
    for old, new in (
        ("blobs.", f"{stage.prefix}.blobs."),
        ("tasks.first.general", f"{stage.prefix}.tasks.{stage.run.name}.coding"),
    ):
        assert program.count(f'"{old}') == 1
        program = program.replace(f'"{old}', f'"{new}')
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "large").symlink_to(tmp_path / "task")
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py")]
    await anyio.run_process(command, cwd=tmp_path, env={**os.environ, "NATS_URL": stage.url})
    async with playing(roles(stage)):
        await stage.reaches(1, "submissions", status="accepted")


async def test_an_incomplete_or_false_tree_is_refused_in_one_sentence(
    stage: Stage, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "BLOB_TRIES", 2)
    message = task.to_message()
    no_json = b"{"
    sha = hashlib.sha256(no_json).hexdigest()
    wrong = {
        "tree": {**message, "trees": {"environment": [sha]}},
        "size": {**message, "blobs": {"environment/files/x": {"parts": [sha], "size": 7}}},
        "name": {**message, "trees": {"environment": ["x" * 64]}},
        "absent": {**message, "trees": {"environment": ["0" * 64]}},
    }
    async with playing(roles(stage)):
        await send_blobs(stage.bus, task.packed.parts)
        await stage.bus.publish(Outgoing(subject=subjects.blob(sha), msg_id=sha, schema="", body=no_json))
        await stage.reaches(len(task.packed.parts) + 1, "blobs")
        answers = await publish_tasks(
            stage.bus,
            stage.run.name,
            [("coding", TaskSubmitted(task=each, submission=name)) for name, each in wrong.items()],
            60.0,
        )
    found = {
        name: reason
        for name, (status, reason) in answers.items()
        if status is SubmissionStatus.REJECTED and reason
    }
    assert found["tree"] == f"the tree {sha} is not JSON"
    assert found["size"] == "a file of 7 bytes lies in blobs of 1 bytes"
    assert "is not a sha256 in 64 digits" in found["name"]
    assert found["absent"].startswith(f"its blob {'0' * 64} never arrived")
    assert not any("\n" in reason for reason in found.values())


async def test_a_sweep_deletes_old_blobs_that_no_task_of_a_living_run_names(stage: Stage, task: Task) -> None:
    async with playing(roles(stage)):
        assert await published(stage, task) == (SubmissionStatus.ACCEPTED, None)
        stray = hashlib.sha256(b"stray").hexdigest()
        for sha, body in ((stray, b"stray"), (hashlib.sha256(b"new").hexdigest(), b"new")):
            await stage.bus.publish(Outgoing(subject=subjects.blob(sha), msg_id=sha, schema="", body=body))
        await stage.reaches(len(task.packed.parts) + 2, "blobs")
    engine = stage.context.engine
    async with engine.begin() as connection:
        await aged(connection, [stray, *task.packed.parts])
        kept = await pool_blobs.named(connection)
        assert kept == set(task.packed.parts)
        doomed = await pool_blobs.unnamed(connection, kept)
    assert doomed == {stray: 5}
    assert await pool_blobs.sweep(engine, doomed) == pool_blobs.Swept(1, 5)
    async with engine.begin() as connection:
        assert await pool_blobs.missing(connection, [stray, *task.packed.parts]) == {stray}
        assert await pool_blobs.named(connection, without=stage.run.run_id) == set()
        await connection.execute(update(tables.runs).values(pruned=tables.runs.c.created))
        doomed = await pool_blobs.unnamed(connection, await pool_blobs.named(connection))
    assert (await pool_blobs.sweep(engine, doomed)).count == len(task.packed.parts)


async def test_a_blob_that_a_sweep_is_deleting_is_missing_for_a_task_that_names_it(stage: Stage) -> None:
    bodies = {hashlib.sha256(body).hexdigest(): body for body in (b"deleted", b"kept")}
    engine, found = stage.context.engine, list[set[str]]()
    async with engine.begin() as connection:
        await pool_blobs.store(connection, bodies)
        await aged(connection, list(bodies))
    deleted = min(bodies)

    async def name() -> None:
        async with engine.begin() as connection:
            found.append(await pool_blobs.name(connection, bodies))

    async with anyio.create_task_group() as tasks:
        async with engine.begin() as sweeping:
            await sweeping.execute(delete(tables.blobs).where(tables.blobs.c.sha == bytes.fromhex(deleted)))
            tasks.start_soon(name)
            await until(lambda: _waits_or_is_done(engine, found))
    assert found == [{deleted}]


async def test_a_sweep_keeps_a_blob_that_a_task_named_after_the_sweep_had_listed_it(stage: Stage) -> None:
    sha = hashlib.sha256(b"named").hexdigest()
    async with stage.context.engine.begin() as connection:
        await pool_blobs.store(connection, {sha: b"named"})
        await aged(connection, [sha])
        doomed = await pool_blobs.unnamed(connection, await pool_blobs.named(connection))
        assert await pool_blobs.name(connection, [sha]) == set()
    assert doomed == {sha: 5}
    assert await pool_blobs.sweep(stage.context.engine, doomed) == pool_blobs.Swept(0, 0)


async def aged(connection: AsyncConnection, shas: list[str]) -> None:
    """Make the blobs two days older."""
    old = tables.blobs.c.at - text("interval '2 days'")
    names = [bytes.fromhex(sha) for sha in shas]
    await connection.execute(update(tables.blobs).where(tables.blobs.c.sha.in_(names)).values(at=old))


async def _waits_or_is_done(engine: AsyncEngine, found: list[set[str]]) -> bool:
    """Whether a statement about blobs waits for a lock, or `found` has an answer."""
    waiting = text(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query ilike '%blobs%'"
    )
    async with engine.connect() as connection:
        return bool(found) or bool(await connection.scalar(waiting))


async def test_a_file_with_the_content_of_a_tree_keeps_what_the_tree_names(
    stage: Stage, tmp_path: Path
) -> None:
    def document(sha: str) -> bytes:
        return json.dumps({"blobs": {"x": {"parts": [sha], "size": 1}}}).encode()

    names = {
        name: hashlib.sha256(body).hexdigest()
        for name, body in (("x", b"x"), ("tree", document(hashlib.sha256(b"x").hexdigest())))
    }
    tree = names["tree"]
    body = {"blobs": {"environment/files/y": {"parts": [tree], "size": 1}}, "trees": {"environment": [tree]}}
    async with stage.context.engine.begin() as connection:
        await pool_blobs.store(connection, {tree: document(names["x"])})
        await connection.execute(
            insert(tables.tasks).values(
                run_id=stage.run.run_id, sha=b"1" * 32, domain="coding", name="t", settings={}, body=body
            )
        )
        assert await pool_blobs.named(connection) == set(names.values())


async def test_the_auditor_reads_trees_among_binary_files(stage: Stage, task: Task) -> None:
    async with playing(roles(stage)):
        assert await published(stage, task) == (SubmissionStatus.ACCEPTED, None)
    async with stage.context.engine.begin() as connection:
        bodies = {hashlib.sha256(body).hexdigest(): body for body in (os.urandom(100) for _ in range(300))}
        await pool_blobs.store(connection, bodies)
        await connection.execute(text("analyze blobs"))
    report = await no_violations(stage.context.engine, stage.run.name, only=[check.name for check in BLOBS])
    assert [check.examined for check in report.checks if check.name in {each.name for each in BLOBS}] == [
        len(task.packed.parts)
    ] * 2


async def test_a_runner_says_which_blob_is_lost(stage: Stage, task: Task, tmp_path: Path) -> None:
    files = TaskFiles(stage.context.engine, BlobCache(tmp_path / "cache", 1 << 20))
    with pytest.raises(BlobsMissing, match=r"its blob [0-9a-f]{64}( and \d+ others)? never arrived"):
        await files.task(task.to_message())


async def test_blobs_that_hold_more_than_a_task_says_never_reach_the_cache(
    stage: Stage, tmp_path: Path
) -> None:
    bodies = {hashlib.sha256(body).hexdigest(): body for body in map(os.urandom, [900_000] * 40)}
    async with stage.context.engine.begin() as connection:
        await pool_blobs.store(connection, bodies)
    cache = BlobCache(tmp_path / "cache", 100 << 20)
    message = {"files": {"instruction.md": "Say 7."}, "blobs": {"a": {"parts": list(bodies), "size": 1_000}}}
    with pytest.raises(ValueError, match="its blobs hold more bytes than it says"):
        await TaskFiles(stage.context.engine, cache).task(message)
    assert set(cache.missing(bodies)) == set(bodies)


@pytest.mark.parametrize(
    "point",
    [
        "blobs.commit.before",
        "blobs.commit.after",
        "blobs.read.before",
        "ack.blobs.before",
        "publish.blobs.before",
        "publish.blobs.after",
    ],
)
async def test_a_task_survives_a_failure_at_each_boundary_of_its_blobs(
    stage: Stage, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    armed = tmp_path / "points"
    armed.mkdir()
    (armed / point).write_text("raise\ndelay 0.2\nraise\n")
    (armed / point.rpartition(".")[0]).write_text("duplicate\n")
    monkeypatch.setattr(failpoints, "directory", armed)
    async with playing(roles(stage)):
        assert await published(stage, task) == (SubmissionStatus.ACCEPTED, None)
    assert len((armed / failpoints.HITS).read_text().splitlines()) >= 3
    assert await stored(stage.context.engine) == set(task.packed.parts)


async def test_a_question_with_too_many_names_gets_no_answer_and_everything_is_sent(
    stage: Stage, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role, "MAX_NAMES", len(task.packed.parts) - 1)
    monkeypatch.setattr(send, "ANSWER_S", 0.5)
    async with playing(roles(stage)):
        assert await published(stage, task) == (SubmissionStatus.ACCEPTED, None)
        assert await missing_blobs(stage.bus, task.packed.parts) == set(task.packed.parts)
        [first, *_] = task.packed.parts
        assert await missing_blobs(stage.bus, [first]) == set()


async def test_the_limits_are_those_of_the_run_that_a_task_is_for(
    stage: Stage, task: Task, engine: AsyncEngine, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    async with staged(engine, nats_server.url, tasks={"max_file_mb": 1}) as other:
        event = PublishOptions().event(task)
        async with playing(roles(stage)):
            assert await published(stage, task) == (SubmissionStatus.ACCEPTED, None)
            [(status, reason)] = (await publish_tasks(stage.bus, other.run.name, [event], 60.0)).values()
    assert status is SubmissionStatus.REJECTED
    assert reason == "environment/files/data.bin has 1.1 MB, and a file of a task has at most 1 MB"
