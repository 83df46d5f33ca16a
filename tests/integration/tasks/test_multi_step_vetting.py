"""`penstock tasks vet` over tasks with several steps: the example of the guide, and faults that lie in one step."""

import re
import subprocess
from pathlib import Path

import pytest

from orchestrator.contracts.vetting import Level
from orchestrator.probing import ProbeRun
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task, load
from orchestrator.tasks.vetting.findings import TaskFault
from orchestrator.vetting.task import Options, vet
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.anyio, pytest.mark.tier("probes"), pytest.mark.timeout(200)]

GUIDE = Path(__file__).resolve().parents[3] / "ops" / "guides" / "task-directory.md"


@pytest.fixture
def example(tmp_path: Path) -> Task:
    """The task that the guide's section makes."""
    (block,) = re.findall(
        r"```sh\n(mkdir -p tasks/steps/.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL
    )
    made = block.replace("penstock tasks check tasks/steps\n", "")
    subprocess.run(["bash", "-e", "-c", made], cwd=tmp_path, check=True)
    return load(tmp_path / "tasks" / "steps")


async def test_the_guides_example_holds_under_its_controls(example: Task) -> None:
    options = Options(section=SandboxSection(), times=1, until=Level.CONTROLS_HOLD)
    report = await vet("example", example, BubblewrapProvider(), options)
    assert report.level is Level.CONTROLS_HOLD, report
    assert example.is_multi_step and example.is_solved


async def test_a_solution_is_run_and_graded_in_every_step_and_a_missed_step_ends_the_task(
    example: Task,
) -> None:
    run = ProbeRun(example, BubblewrapProvider(), section=SandboxSection(), agent_s=8.0)
    left = await run.solved()
    assert left is not None and len(left.steps) == 2
    assert [[file.path for file in each.artifacts] for each in left.steps] == [
        ["note.txt"],
        ["count.txt", "note.txt"],
    ]
    found = await run.judged(left)
    assert (found.reward, found.components) == (1.0, {"reward": 1.0, "note/reward": 1.0, "count/reward": 1.0})
    wrong = example.with_file("steps/note/solution/solve.sh", b"echo other > note.txt\n")
    run = ProbeRun(wrong, BubblewrapProvider(), section=SandboxSection(), agent_s=8.0)
    left = await run.solved()
    assert left is not None
    assert (await run.judged(left)).components == {"reward": 0.0, "note/reward": 0.0}


async def test_a_step_without_a_solution_and_a_step_that_always_passes_are_named(example: Task) -> None:
    options = Options(section=SandboxSection(), times=1, until=Level.CONTROLS_HOLD)
    files = {path: file for path, file in example.files.items() if path != "steps/count/solution/solve.sh"}
    report = await vet("unsolved", Task.from_files(files), BubblewrapProvider(), options)
    faults = {finding.fault for result in report.results for finding in result.findings}
    assert TaskFault.NO_SOLUTION in faults
    always = b"echo 1 > /logs/verifier/reward.txt\n"
    paying = example.with_file("task.toml", b'[[steps]]\nname = "note"\n[[steps]]\nname = "count"\n')
    report = await vet(
        "paying", paying.with_file("steps/count/tests/test.sh", always), BubblewrapProvider(), options
    )
    faults = {finding.fault for result in report.results for finding in result.findings}
    assert TaskFault.NOTHING_PAYS in faults
