"""A row of SWE-bench in a sandbox that has the repository with its history, as an image has it."""

from pathlib import Path

import pytest

from orchestrator.contracts.vetting import Level
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import load
from orchestrator.tasks.vetting.findings import Control
from orchestrator.vetting.task import Options, vet
from sandboxes.bubblewrap import BubblewrapProvider
from tests.import_sets import CALCULATOR, CHECK, committed, row, rows, write
from tests.unit.tasks.importing.rig import imported

pytestmark = [pytest.mark.anyio, pytest.mark.tier("probes"), pytest.mark.timeout(200)]


async def test_the_tests_read_the_base_commit_through_the_wrapper(tmp_path: Path) -> None:
    """The objects are read by git, which is held as the agent's programs are."""
    repository = write(tmp_path / "calculator", {**CALCULATOR, "deep/conftest.py": "# of it\n"})
    source = rows(tmp_path / "rows.jsonl", row(committed(repository), image="a:1"))
    assert imported("swe", source, tmp_path / "to", "--test-command", CHECK).code == 0
    task = tmp_path / "to" / "people__calculator-7"
    toml = (task / "task.toml").read_text()
    (task / "task.toml").write_text(toml[: toml.index("[environment]")])
    (task / "environment").mkdir()
    repository.rename(task / "environment" / "files")
    options = Options(section=SandboxSection(), times=1, until=Level.CONTROLS_HOLD)
    found = await vet("a", load(task), BubblewrapProvider(), options)
    rewards = {result.control: result.details for result in found.results}
    assert rewards[Control.ORACLE] == "rewards 1" and rewards[Control.NOTHING] == "rewards 0", found.findings
