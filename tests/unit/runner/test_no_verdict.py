"""Every cause of a verification without a verdict, and the table of the guide."""

import re
from pathlib import Path

import pytest

from orchestrator.contracts.no_verdict import NoVerdict
from orchestrator.runner.grade import Grade, GradedWork, grade
from orchestrator.runner.verify_runner import cause_of, died, why
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.multi_step import together
from sandboxes.base import (
    File,
    ImageRefused,
    KilledBy,
    PathRefused,
    RefusedReason,
    SandboxError,
    SandboxLost,
    SandboxSpent,
)
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[3] / "ops/guides/write-tests.md"


async def of_tests(script: str, timeout_s: float = 60.0) -> str | None:
    work = GradedWork(answer="", artifacts=[], tests={"test.sh": File(script.encode())})
    provider, section = BubblewrapProvider(), SandboxSection()
    return (await grade(provider, Environment(files={}), work, section, timeout_s=timeout_s, seed=1)).reason


def of_steps() -> str:
    task = Task.from_files({"task.toml": b"", "instruction.md": b"do it", "tests/test.sh": b"exit 0"})
    with pytest.raises(ValueError) as raised:
        together(task, [{"a": 1.0, "b": 0.0}])
    return NoVerdict.STEPS.of(raised.value)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ImageRefused("no such image"), NoVerdict.REFUSED),
        (PathRefused("a", RefusedReason.LINK), NoVerdict.REFUSED),
        (SandboxSpent("memory"), NoVerdict.SPENT),
        (OSError(28, "No space left on device"), NoVerdict.MACHINE),
        (KeyError("a fault of ours"), NoVerdict.OURS),
        (RuntimeError(f"{NoVerdict.LEASE.value.says} died"), NoVerdict.OURS),
    ],
)
def test_the_cause_of_an_error_follows_from_its_type_and_not_from_its_words(
    error: Exception, cause: NoVerdict
) -> None:
    assert cause_of(error) is cause


async def test_every_cause_without_a_verdict_is_one_of_the_table() -> None:
    reasons = {
        NoVerdict.LIMIT: await of_tests("sleep 300", timeout_s=0.5),
        NoVerdict.SIGNAL: await of_tests("kill -9 $$"),
        NoVerdict.REWARD: await of_tests("exit 0"),
        NoVerdict.STEPS: of_steps(),
        NoVerdict.REFUSED: why(ImageRefused("no such image")),
        NoVerdict.SPENT: why(SandboxSpent("memory")),
        NoVerdict.LOST: why(SandboxLost("killed")),
        NoVerdict.SANDBOX: why(SandboxError("no process")),
        NoVerdict.MACHINE: why(OSError(28, "No space left on device")),
        NoVerdict.OURS: why(KeyError("a fault of ours")),
        NoVerdict.LEASE: NoVerdict.LEASE.of("'s lease ran out"),
    }
    assert [*reasons] == [*NoVerdict]
    for cause, reason in reasons.items():
        assert reason is not None and reason.startswith(cause.value.says), (cause, reason)
    assert why(PathRefused("a", RefusedReason.LINK)).startswith(NoVerdict.REFUSED.value.says)


def test_the_guide_has_the_table_of_all_causes() -> None:
    rows = [
        f"| {cause.value.what} | `{cause.value.says.strip()}` | {cause.value.fault} | {cause.value.remedy} |"
        for cause in NoVerdict
    ]
    table = "\n".join(["| cause | its reason begins with | whose | remedy |", "|---|---|---|---|", *rows])
    assert table in GUIDE.read_text(), f"the table is:\n{table}"
    assert len({re.sub(r"\W", "", cause.value.says) for cause in NoVerdict}) == len(NoVerdict)


@pytest.mark.parametrize(
    ("cause", "killed_by", "says"),
    [
        (NoVerdict.SIGNAL, KilledBy.NONE, True),
        (NoVerdict.LIMIT, KilledBy.MEMORY, True),
        (NoVerdict.LIMIT, KilledBy.TIMEOUT, False),  # tests that wait for the agent's server
        (NoVerdict.LIMIT, KilledBy.CPU, False),
        (NoVerdict.LIMIT, KilledBy.OUTPUT, False),
        (NoVerdict.REWARD, KilledBy.NONE, False),
        (NoVerdict.REWARD, KilledBy.MEMORY, False),  # it ended by itself
        (None, KilledBy.MEMORY, False),
    ],
)
def test_tests_die_by_themselves_only_of_what_a_missing_program_cannot_cause(
    cause: NoVerdict | None, killed_by: KilledBy, says: bool
) -> None:
    found = Grade(reward=None, exit_code=137, log="", cause=cause, killed_by=killed_by)
    assert died(found) is says
