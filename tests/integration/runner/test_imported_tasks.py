"""Sets of all three forms, imported, checked, vetted, published and run by the controls: the solution earns 1, no work earns 0."""

import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.contracts.states import Purpose, SubmissionStatus
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.publish import PublishOptions, blobs_of, publish_tasks
from orchestrator.roles.blobs import answer_missing, store_blobs
from orchestrator.roles.intake import Intake
from orchestrator.tasks.sources import admissible, each
from tests.import_sets import CALCULATOR, CHECK, HARBOR, TERMINAL_BENCH, committed, row, rows, smith, write
from tests.integration.runner.rig import Rig, open_rig

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("tasks")]

VERDICTS = """SELECT s.task, s.scaffold, v.reward FROM verdicts v JOIN rollout_summary s USING (rollout_id)"""
NAMES = ["people__calculator-7", "smith-1", "sum", "word"]
SCAFFOLDS = ["oracle", "nop"]


def a_set_of_each_form(directory: Path) -> list[list[str]]:
    """Writes the sets; returns the words of the commands that import them."""
    write(directory / "harbor" / "word", HARBOR)
    write(directory / "terminal" / "sum", TERMINAL_BENCH)
    commit = committed(write(directory / "clones" / "people__calculator", CALCULATOR))
    (directory / "clones" / "swesmith").mkdir()
    named = f"swesmith/people__calculator.{commit[:8]}"
    (directory / "clones" / named).symlink_to(directory / "clones" / "people__calculator")
    local = rows(directory / "local.jsonl", row(commit), smith(commit))
    image = rows(directory / "image.jsonl", row(commit, instance_id="with-image", image="example.org/calc:1"))
    own = ["--repositories", str(directory / "clones"), "--base", "python:3.11", "--test-command", CHECK]
    short = ["--test-timeout-s", "60", "--agent-timeout-s", "60"]
    return [
        ["harbor", str(directory / "harbor")],
        ["terminal-bench", str(directory / "terminal")],
        ["swe", str(local), *own, *short],
        ["swe", str(image)],
    ]


def penstock(*words: str) -> Result:
    """A command without a run, in this process."""
    return CliRunner().invoke(app, list(words))


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> AsyncIterator[Rig]:
    async with open_rig(database_url, nats_server.url, directory, model) as rig:
        rig.start_runner()
        rig.start_verifier()
        rig.tasks.start_soon(Intake(rig.context, SCAFFOLDS).run)
        rig.tasks.start_soon(store_blobs, rig.context)
        rig.tasks.start_soon(answer_missing, rig.context)
        yield rig


async def test_imported_tasks_of_every_form_pay_the_solution_and_nothing_else(
    rig: Rig, tmp_path: Path
) -> None:
    suite = tmp_path / "suite"
    refused: dict[str, str | None] = {}
    for words in a_set_of_each_form(tmp_path):
        done = penstock("tasks", "import", *words, "--to", str(suite), "--json")
        assert done.exit_code == 0, done.output
        refused |= {each["name"]: each["run"] for each in json.loads(done.stdout)["tasks"]}
    assert sorted(refused) == sorted([*NAMES, "with-image"])
    assert [name for name, why in refused.items() if why] == ["with-image"]
    checked = penstock("tasks", "check", str(suite))
    assert "docker_image = 'example.org/calc:1'" in str(checked.exception), checked.output
    shutil.rmtree(suite / "with-image")
    assert penstock("tasks", "check", str(suite)).exit_code == 0
    vet = ("tasks", "vet", str(suite / "sum"), "--until", "controls-hold", "--times", "1")
    vetted = await anyio.to_thread.run_sync(partial(penstock, *vet))  # it has an event loop of its own
    assert vetted.exit_code == 0 and "1 of 1 task reach controls-hold" in vetted.stdout, vetted.output

    tasks, problems = admissible(each([suite]), rig.context.config.sandbox)
    assert problems == []
    for scaffold in SCAFFOLDS:
        options = PublishOptions(purpose=Purpose.EVAL, scaffold=scaffold, label=scaffold)
        events = [options.event(task) for task in tasks]
        answers = await publish_tasks(rig.context.bus, rig.context.run, events, 60.0, blobs=blobs_of(tasks))
        assert list(answers.values()) == [(SubmissionStatus.ACCEPTED, None)] * len(NAMES)
    await rig.until("SELECT count(*) AS n FROM verdicts", lambda row: row.n == 2 * len(NAMES))
    found = {(row.task, row.scaffold): row.reward for row in await rig.rows(VERDICTS)}
    expected = {"oracle": 1.0, "nop": 0.0}
    assert found == {(name, scaffold): reward for name in NAMES for scaffold, reward in expected.items()}
