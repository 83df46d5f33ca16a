"""The control `flaky` blames a task for a condition only if a run can have it, and only for the condition itself."""

import pytest

from ops.lab.task_set.small import BEGIN, PAY, WELL_MADE, Files
from orchestrator.contracts.vetting import Level
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.vetting.findings import Control
from orchestrator.tasks.vetting.report import TaskReport
from orchestrator.vetting.task import Options, vet
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.anyio, pytest.mark.tier("probes"), pytest.mark.timeout(200)]
ZONE: Files = WELL_MADE["write"] | {
    "tests/test.sh": f"""{BEGIN}[ "$(date -d @1700000000 +%H)" = 03 ] && [ -f out.txt ] && {PAY}\nexit 0\n""".encode()
}
TOKYO = b'[%s]\nenv = {TZ = "Etc/GMT-5"}\n'


async def vetted(files: Files) -> TaskReport:
    options = Options(section=SandboxSection(), times=1, until=Level.CONTROLS_HOLD)
    return await vet("a", Task.from_files(files), BubblewrapProvider(), options)


@pytest.mark.parametrize(
    "more",
    [
        {"task.toml": TOKYO % b"environment"},
        {"task.toml": TOKYO % b"verifier"},
        {"environment/Dockerfile": b"FROM debian:12\nENV TZ=Etc/GMT-5\n"},
        {
            "task.toml": b'artifacts = ["out.txt"]\n[verifier]\nenvironment_mode = "separate"\n',
            "tests/Dockerfile": b"FROM debian:12\nENV TZ=Etc/GMT-5\n",
        },
    ],
    ids=["environment", "verifier", "Dockerfile", "Dockerfile of tests"],
)
async def test_a_time_zone_that_the_task_sets_is_not_varied(more: Files) -> None:
    found = await vetted(ZONE | more)
    assert found.level is Level.CONTROLS_HOLD, found.findings
    (flaky,) = (result for result in found.results if result.control is Control.FLAKY)
    assert flaky.details == "varied: draws; time zone pinned by the task"


async def test_a_hook_that_changes_the_reward_by_itself_is_not_an_order_of_tests() -> None:
    """The tests look at the bytes of their own conftest.py, to which the hook is added."""
    script = f"{BEGIN}# pytest\n[ -e /tests/conftest.py ] || {{ [ -f out.txt ] && {PAY}; }}\nexit 0\n"
    found = await vetted(WELL_MADE["write"] | {"tests/test.sh": script.encode()})
    assert found.level is Level.CONTROLS_HOLD, found.findings
