"""A reference solution that earns 0 because of what the tests do not see of it gets this cause."""

import pytest

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.vetting.trials import Trials
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio

TEST = "({test}) && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"


async def reason(solution: str, test: str, toml: str = "") -> str:
    files = {
        "task.toml": toml.encode(),
        "instruction.md": b"do it",
        "tests/test.sh": TEST.format(test=test).encode(),
        "solution/solve.sh": solution.encode(),
    }
    trials = Trials(Task.from_files(files), BubblewrapProvider(), section=SandboxSection())
    outcome = await trials.outcome(await trials.solved())
    return "" if outcome.reward else outcome.reason


async def test_a_file_in_the_home_directory_is_named() -> None:
    found = await reason("mkdir -p ~/.local/bin; echo 1 >~/.local/bin/tool", "test -e ~/.local/bin/tool")
    assert (
        "'/home/agent/.local/bin/tool' lies outside of the work directory and did not reach the tests"
        in found
    )


async def test_a_name_with_line_ends_is_one_name() -> None:
    assert r"'/tmp/a\nb' lies outside" in await reason("touch $'/tmp/a\\nb'", "false")
    found = await reason("(exec -a $'x\\ny' sleep 543.22 >/dev/null 2>&1 &)", "false")
    assert (
        r"'x\ny 543.22' still ran, was ended and did not reach the tests" in found and "others" not in found
    )


async def test_a_process_that_the_solution_left_running_is_named() -> None:
    found = await reason("(setsid sleep 543.21 >/dev/null 2>&1 &); echo 1 >out", "false")
    assert "'sleep 543.21' still ran, was ended and did not reach the tests" in found


async def test_what_a_health_check_left_outside_of_the_work_directory_is_named() -> None:
    check = '[environment.healthcheck]\ncommand = "touch /tmp/up"'
    assert "'/tmp/up' lies outside of the work directory" in await reason("true", "test -e /tmp/up", check)


async def test_a_solution_that_is_wrong_for_another_reason_gets_no_such_cause() -> None:
    assert "did not reach the tests" not in await reason("echo 2 >out", "grep -q 1 out")
    assert await reason("echo 1 >out; touch /tmp/x", "grep -q 1 out") == ""
