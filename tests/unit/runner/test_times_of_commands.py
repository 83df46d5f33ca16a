"""The commands of a task that run in the agent's sandbox have the time that the task gives them."""

import pytest

from orchestrator.contracts.errors import InfraFailure
from orchestrator.runner.collect import run_hooks
from orchestrator.runner.healthcheck import until_healthy
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.multi_step import steps_of
from sandboxes.base import SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio

TOML = """
[environment.healthcheck]
command = "echo began >/tmp/began; sleep 543"
timeout_sec = 0.5
retries = 1
[[verifier.collect]]
command = "echo began >began; sleep 543; echo ended >ended"
timeout_sec = 0.5
"""
STEPS = """
[[steps]]
name = "one"
[steps.healthcheck]
command = "sleep 543"
timeout_sec = 0.5
retries = 1
[[steps.verifier.collect]]
command = "echo began >began; sleep 543"
timeout_sec = 0.5
"""


async def test_a_health_check_and_a_collected_command_end_after_their_seconds() -> None:
    files = {"instruction.md": b"do it", "tests/test.sh": b"true"}
    steps = {"steps/one/instruction.md": b"do it", "tests/test.sh": b"true"}
    whole = Task.from_files({**files, "task.toml": TOML.encode()})
    (step,) = steps_of(Task.from_files({**steps, "task.toml": STEPS.encode()}))
    checks = ((whole.settings.healthcheck, whole), (step.healthcheck, step.task))
    for check, task in checks:
        assert check is not None
        async with BubblewrapProvider().open(SandboxSpec()) as sandbox:
            with pytest.raises(
                InfraFailure, match=r"failed 1 times in a row, the last one did not end within 0\.5 s"
            ):
                await until_healthy(sandbox, check)
            await run_hooks(sandbox, task.settings.verifier.collect)
            assert await sandbox.get("/app/began") == b"began\n"
            with pytest.raises(FileNotFoundError):
                await sandbox.get("/app/ended")
