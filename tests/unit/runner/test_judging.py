"""Who caused the end of a test script, and the random numbers that a verification draws."""

import pytest

from orchestrator.runner.grade import GradedWork, grade
from orchestrator.runner.judging import (
    Programs,
    draws,
    programs,
    seed,
    verification_limits,
)
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import Environment
from sandboxes.base import File, KilledBy, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("ledger", "killed_by", "wall_s", "theirs"),
    [
        (None, KilledBy.MEMORY, 9.0, False),
        ("begin 1 1.0\nend 1 2.0 0.1 5 -\n", KilledBy.MEMORY, 9.0, False),
        ("begin 1 1.0\nend 1 2.0 0.1 5 -\n", KilledBy.MEMORY, 3.0, True),
        ("begin 1 1.0\nend 1 2.0 0.1 5 disk\n", KilledBy.DISK, 9.0, True),
        ("begin 1 1.0\nend 1 2.0 0.1 5 disk\nbegin 2 3.0\nend 2 4.0 0.1 5 -\n", KilledBy.DISK, 9.0, True),
        ("begin 1 1.0\nbegin 2 1.0\nend 2 2.0 0.1 5 -\n", KilledBy.CPU, 9.0, True),
        ("begin 1 1.0\n", KilledBy.TIMEOUT, 9.0, False),
        ("begin 1 1.0\n", KilledBy.NONE, 9.0, False),
    ],
)
def test_a_limit_is_the_programs_where_one_used_it_up_runs_or_has_just_ended(
    ledger: str | None, killed_by: KilledBy, wall_s: float, theirs: bool
) -> None:
    assert bool(programs(ledger).blamed(killed_by, wall_s)) is theirs


def test_the_ledger_counts_programs_and_keeps_the_first_breach() -> None:
    text = "begin 1 1.0\nend 1 2.0 0.1 5 memory\nbegin 2 3.0\nend 2 4.5 0.1 5 disk\nbegin 3 5.0\ntorn"
    assert programs(text) == Programs(count=3, breach="memory", running=True, at_s=5.0)


def test_every_limit_of_the_sandbox_lies_above_that_of_the_programs() -> None:
    section = SandboxSection()
    environment = Environment(
        files={"/app/f": File(bytes(1000)), "/home/agent/a/b": File(b""), "/tmp/c": File(b"")}
    )
    held = verification_limits(section, 30.0, environment, private=True, tests_bytes=0)
    received = dict(line.split(" ", 1) for line in held.programs.data.decode().splitlines())
    assert (received["home"], received["tmp"], received["private"]) == ("a/b", "c", "1")
    assert held.limits.memory_mb << 20 > int(received["memory_bytes"]) == section.memory_mb << 20
    assert held.limits.processes > int(received["processes"]) > section.processes
    assert held.limits.cpu_s > float(received["cpu_s"])
    assert held.limits.disk_mb << 20 > int(received["disk_bytes"]) > section.disk_mb << 20
    assert held.limits.disk_files > int(received["disk_files"])
    assert 16 * held.limits.output_bytes > int(received["output_bytes"])
    assert held.limits.wall_s > float(received["until_s"]) == 24.0


def test_an_agent_without_the_tests_cannot_predict_the_draw() -> None:
    drawn = [seed("run", 7, 1, {"test.sh": File(body)}) for body in (b"exit 0", b"exit 1")]
    assert drawn[0] != drawn[1] and drawn[0] == seed("run", 7, 1, {"test.sh": File(b"exit 0")})
    assert seed("run", 7, 1, {"a": File(b"b"), "c": File(b"")}) != seed("run", 7, 1, {"a": File(b"bc")}), (
        "where a name ends is not a matter of taste"
    )


async def test_every_verification_of_an_attempt_draws_the_same_and_another_attempt_something_else() -> None:
    script = "echo $PENSTOCK_SEED $RANDOM $RANDOM; python3 -c 'print(hash(\"x\"))'; bash -c 'echo ${BASH_ENV-none}'"
    outputs = []
    for attempt in (1, 1, 2):
        variables, files = draws(seed("run", 7, attempt, {}))
        async with BubblewrapProvider().open(
            SandboxSpec(files={**files, "/tests/test.sh": File(script.encode())})
        ) as sandbox:
            outputs.append((await sandbox.exec(["bash", "/tests/test.sh"], env=variables)).stdout)
    assert outputs[0] == outputs[1] != outputs[2] and outputs[0].endswith(b"none\n")


async def test_results_that_cannot_be_read_change_no_verdict() -> None:
    script = "mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt; cat $PENSTOCK_ANSWER > /logs/verifier/results.json"
    for answer, why in (
        ("x" * 500_000, "is larger than"),
        ("[7", "note: left out: /logs/verifier/results.json"),
    ):
        work = GradedWork(answer=answer, artifacts=[], tests={"test.sh": File(script.encode())})
        found = await grade(
            BubblewrapProvider(), Environment(files={}), work, SandboxSection(), timeout_s=30, seed=1
        )
        assert (found.reward, list(found.tests)) == (0.0, []) and why in found.log, found
