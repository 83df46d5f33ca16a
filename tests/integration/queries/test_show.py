"""`penstock show`: the data pool's content about a rollout, a group and a batch, for people and as JSON."""

import json
import secrets
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.cli.show import LISTED
from orchestrator.deploy.home import write_template
from orchestrator.pool import batches, prune
from orchestrator.pool.batches import LiveBatch, NewVersion
from orchestrator.pool.quarantine import quarantine
from orchestrator.pool.runs import StoredRun
from orchestrator.scheduling.queue_policies import queue_policy
from tests import builders
from tests.integration.pool.rig import (
    Tree,
    context_of,
    ended,
    record,
    report,
    resealed,
    running,
    small,
    verify,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]
HOSTILE = "\x1b[2J\u202eevil\x9b [bold]x[/bold]"


@pytest.fixture
async def run(
    engine: AsyncEngine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StoredRun:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    name = f"r{secrets.token_hex(4)}"
    write_template(tmp_path, name, "")
    return await builders.make_run(engine, small(name))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


async def show(home: Path, *arguments: str) -> Result:
    command = ["show", *arguments, "-c", str(home)]
    return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, command))


async def shown(home: Path, *arguments: str) -> str:
    done = await show(home, *arguments)
    assert done.exit_code == 0, done.exception
    return done.stdout


async def test_a_trained_rollout_its_group_and_its_batch(
    engine: AsyncEngine, run: StoredRun, home: Path
) -> None:
    first, _ = await builders.ready_groups(engine, run, ["a", "b"], builders.Author())
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
        batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
        assert batch is not None
        metrics = [{"loss": 0.25, "entropy": 0.5, "cpu_s": 1.5}]
        assert await batches.commit(
            connection,
            run.run_id,
            run.name,
            batch=batch,
            new=NewVersion(version=1, parent=0, path="/v1", manifest_sha="11"),
            metrics=metrics,
            subject="policy.x",
        )
        members = (
            await connection.scalars(
                text("SELECT rollout_id FROM rollouts WHERE group_id = :g ORDER BY member"), {"g": first}
            )
        ).all()
        action = await connection.scalar(
            text("SELECT i4(action) FROM steps WHERE rollout_id = :r AND idx = 1"), {"r": members[0]}
        )
    one = str(members[0])
    output = await shown(home, "rollout", one)
    assert f"rollout {one} · member 0 of group {first} · queue position 0 · verified" in output
    assert "batch 0 (committed, made version 1, staleness 0)" in output and "1 of 1 tests passed" in output
    assert output.count("--- step ") == 3 and "[answer] done" in output and "rewritten" in output
    whole = json.loads(await shown(home, "rollout", one, "--json"))
    assert whole["rollout_id"] == members[0] and len(whole["conversation"]) == len(whole["steps"]) == 3
    of_step = json.loads(await shown(home, "rollout", one, "--step", "1", "--tokens", "--full", "--json"))
    ids = [id for page in of_step["pages"] for id in page["ids"]]
    assert len(ids) == of_step["tokens"]["full_len"] and ids[-len(action or []) :] == action
    rows = [
        line.split()
        for line in (await shown(home, "rollout", one, "--step", "1", "--tokens")).splitlines()
        if " action " in line
    ]
    assert [int(row[3]) for row in rows] == action
    group = await shown(home, "group", str(first))
    assert f"group {first} · queue position 0 · trained · batch 0 (committed)" in group
    assert [line.split()[0] for line in group.splitlines()[-4:]] == [str(member) for member in members]
    assert [
        member["rollout_id"]
        for member in json.loads(await shown(home, "group", str(first), "--json"))["members"]
    ] == list(members)
    of_batch = await shown(home, "batch", "0")
    assert "batch 0 · committed · 2 of 2 groups · version 0 → 1" in of_batch and " 0.25 " in of_batch
    assert "cpu_s" not in of_batch and "cpu_s" in await shown(home, "batch", "0", "--full")
    assert json.loads(await shown(home, "batch", "0", "--json"))["train_steps"][0]["metrics"]["loss"] == 0.25


async def test_a_rollout_shows_what_its_sandboxes_ran_on_and_that_an_attempt_had_another_image(
    engine: AsyncEngine, run: StoredRun, home: Path
) -> None:
    (group,) = await builders.ready_groups(engine, run, ["a"], builders.Author())
    first, second = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
    async with engine.begin() as connection:
        key = {"g": group, "s": first}
        rollout = await connection.scalar(
            text("SELECT rollout_id FROM rollouts WHERE group_id = :g ORDER BY member LIMIT 1"), key
        )
        assert "sandbox on" not in await shown(home, "rollout", str(rollout))
        await connection.execute(
            text(
                "UPDATE attempts SET system = :s FROM rollouts r WHERE r.rollout_id = attempts.rollout_id AND r.group_id = :g"
            ),
            key,
        )
    assert f"sandbox on {first}\n" in await shown(home, "rollout", str(rollout))
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO attempts (run_id, rollout_id, attempt, epoch, system) VALUES (:run, :r, 2, 2, :s)"
            ),
            {"run": run.run_id, "r": rollout, "s": second},
        )
    output = await shown(home, "rollout", str(rollout))
    assert f"sandbox of attempt 1 on {first}\nsandbox of attempt 2 on {second}\n" in output
    assert "the attempts ran on different systems" in output
    whole = json.loads(await shown(home, "rollout", str(rollout), "--json"))
    assert [attempt["system"] for attempt in whole["attempts"]] == [first, second]


async def test_a_batch_shows_why_it_was_quarantined_and_so_does_the_one_that_has_its_number_since(
    engine: AsyncEngine, run: StoredRun, home: Path
) -> None:
    async def taken() -> LiveBatch:
        async with engine.begin() as connection:
            batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
        assert batch is not None and batch.batch_no == 0
        return batch

    first, second, *_ = await builders.ready_groups(engine, run, list("abcd"), builders.Author())
    bad = await taken()
    async with engine.begin() as connection:
        assert await quarantine(connection, run.run_id, bad.batch_id, f"its loss is nan {HOSTILE}")
    output = await shown(home, "batch", "0")
    assert "batch 0 · voided · 2 of 2 groups" in output and "\x1b" not in output
    [why] = [line for line in output.splitlines() if line.startswith("voided ")]
    assert f" · groups {first}, {second} · quarantined: its loss is nan " in why
    good = await taken()
    after = await shown(home, "batch", "0")
    assert "batch 0 · closed · 2 of 2 groups" in after and why in after.splitlines()
    [voided] = json.loads(await shown(home, "batch", "0", "--json"))["voided"]
    assert (voided["batch_id"], voided["groups"]) == (bad.batch_id, [first, second])
    assert voided["detail"].startswith("its loss is nan") and good.batch_id != bad.batch_id


async def test_text_that_a_policy_wrote_moves_no_cursor_and_is_whole_on_request(
    engine: AsyncEngine, run: StoredRun, home: Path
) -> None:
    [lease, _] = await running(engine, run)
    [grown] = Tree(3).grow(run.name, lease, 1)
    long = HOSTILE + "y" * 3_000 + "END"
    call = {"name": "bash", "arguments": {"command": HOSTILE}}
    event = resealed(grown.event, reply={"content": long, "reasoning": HOSTILE, "tool_calls": [call]})
    await record(engine, run, [event])
    context = context_of(engine, run)
    assert await report(context, ended(run.name, lease, [event], answer=HOSTILE, log=HOSTILE))
    await verify(context, lease.rollout_id, 1.0)
    one = str(lease.rollout_id)
    cut, full = await shown(home, "rollout", one), await shown(home, "rollout", one, "--full")
    assert "END" not in cut and "more characters: --full]" in cut and "END" in full
    as_json = await shown(home, "rollout", one, "--full", "--json")
    assert json.loads(as_json)["conversation"][0]["content"]["text"] == long
    for printed in (cut, full, as_json, await shown(home, "group", "1", "--full")):
        assert not {"\x1b", "\x9b", "\u202e"} & set(printed)
    assert "\\x1b[2J\\u202eevil\\x9b [bold]x[/bold]" in full


def listing(home: Path, kind: str) -> str:
    return f'; penstock sql "{LISTED[kind].format(run_id=1)}" -c {home} lists the existing ones'


@pytest.mark.parametrize("kind", LISTED)
async def test_the_command_that_lists_what_can_be_shown_works_and_lists_this_run_alone(
    engine: AsyncEngine, run: StoredRun, home: Path, kind: str
) -> None:
    async def listed(run_id: int) -> str:
        command = ["sql", LISTED[kind].format(run_id=run_id), "-c", str(home), "--json"]
        done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, command))
        assert done.exit_code == 0, done.output
        return done.stdout

    other = await builders.make_run(engine, small("other"))
    await builders.ready_groups(engine, other, ["a", "b"], builders.Author())
    async with engine.begin() as connection:
        await builders.publish_first(connection, other)
        assert await batches.take(connection, other.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
    assert await listed(run.run_id) == "" and "state" in await listed(other.run_id)


async def test_what_is_not_there_is_one_sentence(run: StoredRun, home: Path) -> None:
    for arguments, sentence in (
        (("rollout", "99"), f"rollout 99 does not exist in this run{listing(home, 'rollout')}"),
        (
            ("rollout", "99", "--step", "0"),
            f"rollout 99 does not exist in this run{listing(home, 'rollout')}",
        ),
        (("group", "99"), f"group 99 does not exist in this run{listing(home, 'group')}"),
        (("batch", "99"), f"batch 99 does not exist in this run{listing(home, 'batch')}"),
    ):
        assert str((await show(home, *arguments)).exception) == sentence
    assert (await show(home, "rollout", "x")).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("rollout", "9" * 23), f"'ID': must be a whole number from 0 to {2**63 - 1}, not '{'9' * 23}'"),
        (
            ("rollout", "1", "--attempt", "32768"),
            "'--attempt': must be a whole number from 1 to 32767, not '32768'",
        ),
        (
            ("rollout", "1", "--step", "9" * 11),
            f"'--step': must be a whole number from 0 to {2**31 - 1}, not",
        ),
        (("group", "9" * 5000), f"'ID': must be a whole number from 0 to {2**63 - 1}, not '999"),
        (("batch", "9" * 11), f"'NUMBER': must be a whole number from 0 to {2**31 - 1}, not '99999999999'"),
    ],
)
async def test_a_number_that_no_column_holds_is_one_sentence(
    home: Path, arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    done = await show(home, *arguments)
    assert done.exit_code == 2 and sentence in done.output


async def test_read_only_commands_need_no_bus(
    run: StoredRun, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NATS_URL")
    commands = (
        ["show", "group", "99"],
        ["sql", "select 1"],
        ["top", "--json"],
        ["tail", "--no-follow"],
        ["eval", "list"],
        ["export", "atif", "--out", str(home / "out")],
        ["export", "tensorboard", "--out", str(home / "curves")],
    )
    for command in commands:
        arguments = [*command, "-c", str(home)]
        done = await anyio.to_thread.run_sync(partial(CliRunner().invoke, app, arguments))
        assert "NATS_URL" not in f"{done.output}{done.exception}", command
        assert done.exit_code == 0 or "group 99 does not exist" in str(done.exception), (
            command,
            done.exception,
        )
    monkeypatch.delenv("DATABASE_URL")
    assert "set DATABASE_URL" in str((await show(home, "group", "99")).exception)


async def test_a_rollout_that_nothing_was_recorded_of_is_shown(
    engine: AsyncEngine, run: StoredRun, home: Path
) -> None:
    [group] = await builders.accepted(engine, run, ["a"], size=1)
    output = await shown(home, "rollout", "1")
    assert output.startswith(f"rollout 1 · member 0 of group {group} · train · waiting\n")
    assert "has no step 0: it has 0" in str((await show(home, "rollout", "1", "--step", "0")).exception)


async def test_a_pruned_run_says_so_and_shows_no_zeros(
    engine: AsyncEngine, run: StoredRun, home: Path
) -> None:
    [group_id] = await builders.ready_groups(engine, run, ["a"], builders.Author())
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE runs SET state = 'ended', ended = now(), pruned = now()"))
        first = await connection.scalar(text("SELECT min(rollout_id) FROM rollouts"))
    await prune.drop(engine, run.run_id)
    pruned = "pruned: the steps, messages, tool calls and files of this run were dropped"
    assert pruned in (await shown(home, "rollout", str(first))).splitlines()
    lines = (await shown(home, "group", str(group_id))).splitlines()
    assert pruned in lines
    [header] = [line for line in lines if line.startswith("rollout ")]
    [row] = [line for line in lines if line.startswith(f"{first} ")]
    versions = row[header.index("steps") : header.index("performance")].split()
    assert versions == ["3"], "as the attempt announced them; neither tokens nor versions"
    missing = str((await show(home, "rollout", str(first), "--step", "0")).exception)
    assert missing.endswith("has no step 0: its run was pruned")


async def test_a_rollout_is_written_as_one_html_file_and_never_over_another(
    engine: AsyncEngine, run: StoredRun, home: Path
) -> None:
    [lease, _] = await running(engine, run)
    await record(engine, run, [step.event for step in Tree(3).grow(run.name, lease, 3)])
    file = home / "rollout.html"
    assert "is in" in await shown(home, "rollout", str(lease.rollout_id), "--html", str(file))
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "Content-Security-Policy" in page and "Step 2" in page
    again = await show(home, "rollout", str(lease.rollout_id), "--html", str(file))
    assert "exists already" in str(again.exception) and file.read_text(encoding="utf-8") == page
    lost = await show(home, "rollout", str(lease.rollout_id), "--html", str(home / "no" / "place.html"))
    assert "cannot be written" in str(lost.exception)
