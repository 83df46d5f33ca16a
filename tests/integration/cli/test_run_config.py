"""Commands that act on a run use the run's recorded configuration: tasks are checked against its sandboxes, and `penstock config` names
the values that the run keeps."""

import json
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner, Result

from orchestrator.api import ConfigurationError, PenstockError, connect
from orchestrator.cli.main import app
from orchestrator.deploy.home import Home, write_template
from orchestrator.pool.runs import StoredRun
from orchestrator.settings.config import load
from tests import builders

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.tier("look")]


@pytest.fixture
def home(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's directory, and a task that requests 2,048 MB of memory."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    write_template(tmp_path / "first", "recorded", "")
    (tmp_path / "task/tests").mkdir(parents=True)
    (tmp_path / "task/task.toml").write_text("[environment]\nmemory_mb = 2048\n")
    (tmp_path / "task/instruction.md").write_text("Write hi into out.txt.\n")
    (tmp_path / "task/tests/test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    return tmp_path / "first"


@pytest.fixture
async def run(home: Path, engine: AsyncEngine) -> StoredRun:
    """It starts with 1,024 MB for a sandbox; then the file is edited to 4,096, and to four processes instead of 512."""
    file = home / "penstock.toml"
    written = file.read_text()
    file.write_text(written.replace("memory_mb = 4096", "memory_mb = 1024"))
    found = await builders.make_run(engine, load(Home.at(home).file))
    file.write_text(written.replace("slots = 8 ", "slots = 3 ").replace("capacity = 24", "capacity = 40"))
    return found


async def penstock(*arguments: str) -> Result:
    """One command, in a thread of its own."""
    return await anyio.to_thread.run_sync(partial(CliRunner().invoke, app, list(arguments)))


NEEDS = "[environment].memory_mb"


async def test_tasks_are_checked_against_the_sandboxes_that_the_run_began_with(
    home: Path, run: StoredRun
) -> None:
    task = str(home.parent / "task")
    for words in (["tasks", "check", task], ["tasks", "publish", task], ["eval", "--suite", task]):
        done = await penstock(*words, "-c", str(home))
        assert NEEDS in str(done.exception) and "1024" in str(done.exception), (words, done.exception)
        assert "keeps its original values of: sandbox.memory_mb" in done.stderr


async def test_tasks_of_a_run_that_is_not_there_yet_are_checked_against_its_file(
    home: Path, engine: AsyncEngine
) -> None:
    done = await penstock("tasks", "check", str(home.parent / "task"), "-c", str(home))
    assert done.exit_code == 0 and done.stderr == "", done.exception


async def test_config_names_each_key_whose_value_the_run_keeps_and_no_process_key(
    home: Path, run: StoredRun
) -> None:
    done = await penstock("config", "-c", str(home))
    kept = [line for line in done.stderr.splitlines() if " keeps " in line]
    assert done.exit_code == 0 and kept == [
        "penstock: run 'recorded' keeps queue.capacity = 24, and not the file's 40",
        "penstock: run 'recorded' keeps queue.window = 7, and not the file's 12",
        "penstock: run 'recorded' keeps sandbox.memory_mb = 1024, and not the file's 4096",
    ]


async def test_config_explains_each_key_with_the_value_that_counts_and_the_one_that_is_ignored(
    home: Path, run: StoredRun
) -> None:
    done = await penstock(
        "config", "sandbox.memory_mb", "rollout.slots", "services", "-c", str(home), "--json"
    )
    rows = {row["key"]: row for row in json.loads(done.stdout)}
    memory, slots = rows["sandbox.memory_mb"], rows["rollout.slots"]
    assert (memory["value"], memory["ignored"], memory["scope"]) == (1024, 4096, "run")
    assert (memory["from"], slots["from"]) == ("run", "file")
    assert (slots["value"], slots["default"], slots["scope"]) == (3, 8, "process") and "ignored" not in slots
    assert "postgresql" not in done.stdout and rows["services.nats_url"]["value"].startswith("(not shown")
    table = await penstock("config", "sandbox.memory_mb", "-c", str(home))
    assert "ignored in the file" in table.stdout.splitlines()[0] and "4096" in table.stdout.splitlines()[1]


async def test_status_reports_a_named_database_that_does_not_answer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/pool")
    for options in ([], ["--json"]):
        done = await penstock("status", "-c", str(home), *options)
        assert "PostgreSQL at 127.0.0.1:1/pool" in str(done.exception) and done.stdout == ""


async def test_doctor_counts_the_memory_of_the_sandboxes_that_the_run_began_with(
    home: Path, run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.deploy.preflight.memory_bytes", lambda: 1 << 20)
    done = await penstock("doctor", "--json", "-c", str(home))
    assert "rollout.slots = 3 + rollout.verify_slots = 2, each with sandbox.memory_mb = 1,024" in done.stdout


async def test_tasks_are_read_within_the_size_limits_that_the_run_began_with(
    home: Path, engine: AsyncEngine
) -> None:
    file = home / "penstock.toml"
    written = file.read_text()
    file.write_text(f"{written}\n[tasks]\nmax_file_mb = 1\n")
    await builders.make_run(engine, load(Home.at(home).file))
    file.write_text(written)
    task = home.parent / "task"
    (task / "task.toml").write_text("")
    (task / "tests/data").write_bytes(bytes(3 << 19))
    most = "tests/data has 1.5 MB, and a file of a task has at most 1 MB"
    for words in (
        ["rescore", "--tests", str(task)],
        ["eval", "--suite", str(task)],
        ["tasks", "publish", str(task)],
    ):
        assert most in str((await penstock(*words, "-c", str(home))).exception), words
    words = ["tasks", "vet", str(task), "--until", "well-formed", "--times", "1"]
    vetted = await penstock(*words, "-c", str(home))
    assert (vetted.exit_code, most in vetted.stdout) == (1, True), vetted.output
    imported = await penstock(
        "tasks", "import", "harbor", str(task), "--to", str(home / "to"), "-c", str(home)
    )
    assert (imported.exit_code, most in imported.stdout) == (1, True), imported.output
    assert (await penstock(*words, "--verdicts", str(home / "vetting.jsonl"))).exit_code == 0, "without a run"


async def test_keys_of_tasks_that_the_run_does_not_follow_are_named_before_anything_is_sent(
    home: Path, run: StoredRun
) -> None:
    """Here nothing can be sent, since NATS does not answer."""
    file, task = home / "penstock.toml", home.parent / "task"
    (task / "task.toml").write_text("")
    written = file.read_text()
    file.write_text(f'{written}\n[tasks]\ndomains = {{ science = "reasoning" }}\n')
    vet = ["tasks", "vet", str(task), "--until", "well-formed", "--times", "1"]
    rescore = ["rescore", "--tests", str(task)]
    for words in (["tasks", "publish", str(task)], ["eval", "--suite", str(task)], vet, rescore):
        done = await penstock(*words, "-c", str(home))
        assert "keeps its original values of: tasks.domains, sandbox.memory_mb;" in done.stderr, words
    async with connect(home) as connected:
        with (
            pytest.raises(PenstockError, match="NATS"),
            pytest.warns(UserWarning, match="tasks.domains, sandbox") as of_publish,
        ):
            await connected.publish(task)
        with (
            pytest.raises(PenstockError, match="NATS"),
            pytest.warns(UserWarning, match="tasks.domains, sandbox") as of_evaluate,
        ):
            await connected.evaluate(task, suite="task")
    assert {each.filename for each in (*of_publish, *of_evaluate)} == {__file__}, (
        "they name the caller's line"
    )
    file.write_text(written.replace("shell = 1.0", 'shell = 1.0, "agents/other" = 0.0'))
    done = await penstock("tasks", "publish", str(task), "-c", str(home))
    assert "keeps its original values of: rollout.scaffolds, sandbox.memory_mb;" in done.stderr


async def test_a_file_that_requires_more_of_tasks_than_its_run_publishes_nothing(
    home: Path, run: StoredRun
) -> None:
    (home.parent / "task/task.toml").write_text("")
    file, task = home / "penstock.toml", home.parent / "task"
    file.write_text(f'{file.read_text()}\n[tasks]\nrequire = "vetted"\n')
    sentence = 'the file has tasks.require = "vetted", but the run began with "none" and keeps that'
    assert sentence in str((await penstock("tasks", "publish", str(task), "-c", str(home))).exception)
    async with connect(home) as connected:
        with pytest.raises(ConfigurationError, match=sentence), pytest.warns(UserWarning):
            await connected.publish(task)


async def test_a_task_that_a_scaffold_of_the_run_cannot_run_is_named_before_it_is_sent(
    home: Path, run: StoredRun
) -> None:
    task = home.parent / "task"
    (task / "task.toml").write_text('[[environment.mcp_servers]]\nname = "m"\ncommand = "m"\n')
    sentence = "[environment].mcp_servers is not honoured by the scaffold shell"
    for words in (["check"], ["publish"], ["publish", "--scaffold", "shell"]):
        done = await penstock("tasks", words[0], str(task), *words[1:], "-c", str(home))
        assert sentence in str(done.exception), words
    async with connect(home) as connected:
        with pytest.raises(ValueError, match="by the scaffold shell"), pytest.warns(UserWarning):
            await connected.publish(task)
    done = await penstock("tasks", "publish", str(task), "--scaffold", "codex", "-c", str(home))
    assert "NATS" in str(done.exception), "the scaffold takes it"
    assert (await penstock("tasks", "check", str(task))).exit_code == 0, "without a run"
