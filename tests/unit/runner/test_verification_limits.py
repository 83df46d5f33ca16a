"""Who caused the end of a test script, and the random numbers that a verification draws."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.runner.grade import GradedWork, grade
from orchestrator.runner.verification_limits import (
    Programs,
    draws,
    programs,
    seed,
    verification_limits,
)
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.held.budget import HeldBudget
from orchestrator.tasks.key_values import variables
from sandboxes.base import File, KilledBy, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio

BY_BASH = {"_", "PWD", "SHLVL", "OLDPWD"}
"""Every bash sets them itself."""
OWN = {"PATH": "/usr/bin:/bin:/own", "HOME": "/tmp", "TMPDIR": "/app", "LANG": "C", "PYTHONHASHSEED": "3"}
"""Values with which a sandbox's programs start."""


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
    received = json.loads(held.programs.data)
    assert (received["home"], received["tmp"], received["private"]) == (["a/b"], ["c"], True)
    assert held.limits.memory_mb << 20 > received["memory_bytes"] == section.memory_mb << 20
    assert held.limits.processes > received["processes"] > section.processes
    assert held.limits.cpu_s > received["cpu_s"]
    assert held.limits.disk_mb << 20 > received["disk_bytes"] > section.disk_mb << 20
    assert held.limits.disk_files > received["disk_files"]
    assert 16 * held.limits.output_bytes > received["output_bytes"]
    assert held.limits.wall_s > received["until_s"] == 24.0


ENDS = '\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\t "\\\udcff'
"""Characters that end a line, a word or a text somewhere."""


def test_a_name_that_the_agent_chose_is_one_name_and_no_limit(tmp_path: Path) -> None:
    names = sorted(
        f"out/x{c}{rest}" for c in ENDS for rest in ("tmp /tests", "home /tests", "until_s 0", "private 1")
    )
    environment = Environment(
        files={f"{top}/{name}": File(b"") for top in ("/tmp", "/home/agent") for name in names}
    )
    held = verification_limits(SandboxSection(), 30.0, environment, private=False, tests_bytes=0)
    (tmp_path / "limits").write_bytes(held.programs.data)
    read = HeldBudget(str(tmp_path / "limits"))
    assert read.tmp == read.home == names
    assert (read.until_s, read.private) == (24.0, False)


def test_an_agent_without_the_tests_cannot_predict_the_draw() -> None:
    drawn = [seed("run", 7, 1, {"test.sh": File(body)}) for body in (b"exit 0", b"exit 1")]
    assert drawn[0] != drawn[1] and drawn[0] == seed("run", 7, 1, {"test.sh": File(b"exit 0")})
    assert seed("run", 7, 1, {"a": File(b"b"), "c": File(b"")}) != seed("run", 7, 1, {"a": File(b"bc")}), (
        "where a name ends is not a matter of taste"
    )


async def test_every_verification_of_an_attempt_draws_the_same_and_another_attempt_something_else() -> None:
    child = "bash -c 'echo $RANDOM; exec bash -c \"echo \\$RANDOM\"'"
    script = f"echo $PENSTOCK_SEED $RANDOM $RANDOM; python3 -c 'print(hash(\"x\"))'; {child}; $0.child"
    outputs = []
    for attempt in (1, 1, 2):
        variables, files = draws(seed("run", 7, attempt, {}))
        async with BubblewrapProvider().open(
            SandboxSpec(
                files={
                    **files,
                    "/tests/test.sh": File(script.encode()),
                    "/tests/test.sh.child": File(b"#!/usr/bin/env bash\necho $RANDOM\n", mode=0o755),
                }
            )
        ) as sandbox:
            outputs.append((await sandbox.exec(["bash", "/tests/test.sh"], env=variables)).stdout)
    assert outputs[0] == outputs[1] != outputs[2]
    drawn = outputs[0].split()
    assert drawn[1] == drawn[4] == drawn[5] == drawn[6] != drawn[2], "every bash begins with the same draws"


async def graded(
    script: str, environment: Environment | None = None, env: Mapping[str, str] | None = None
) -> str:
    """The output of a test script."""
    paid = f"{script}\nmkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt"
    work = GradedWork(answer="", artifacts=[], tests={"test.sh": File(paid.encode())}, env=env or {})
    found = await grade(
        BubblewrapProvider(),
        environment or Environment(files={}),
        work,
        SandboxSection(),
        timeout_s=30,
        seed=7,
    )
    assert found.reward == 0.0, found
    return found.log


async def test_a_program_under_test_does_not_learn_the_draws_of_its_judge() -> None:
    program = 'env; cat /tests/.penstock/seed.sh; bash -c "echo drew \\$RANDOM"; . /tests/.penstock/seed.sh; echo drew $RANDOM'
    seen = await graded(f"echo judge $RANDOM; python3 -I $PENSTOCK_UNTRUSTED 10 bash -c '{program}'")
    drew = [line.split()[-1] for line in seen.splitlines() if line.startswith(("judge", "drew"))]
    assert len(drew) == 3 and drew[0] not in drew[1:], seen
    assert "BASH_ENV=" not in seen and "PENSTOCK_SEED=" not in seen, seen


@pytest.mark.parametrize(("given", "kept"), [("11", True), ("0", True), ("random", False), ("", False)])
async def test_a_seed_of_python_hashes_that_the_task_sets_is_kept(given: str, kept: bool) -> None:
    for environment, env in (({}, {"PYTHONHASHSEED": given}), ({"PYTHONHASHSEED": given}, {})):
        seen = await graded('echo "<$PYTHONHASHSEED>"', Environment(files={}, env=environment), env)
        assert f"<{given if kept else 7}>" in seen


async def test_each_variable_that_the_platform_sets_is_reserved_or_has_the_tasks_own_value() -> None:
    def names(output: str) -> set[str]:
        return {line.partition("=")[0] for line in output.splitlines() if "=" in line} - BY_BASH

    async with BubblewrapProvider().open(SandboxSpec(files={})) as sandbox:
        of_agent = names((await sandbox.exec(["env"])).stdout.decode())
    of_tests = names(await graded("env"))
    assert {"PATH", "HOME", "TMPDIR"} <= of_agent < of_tests
    free = {name for name in of_agent | of_tests if variables({name: "x"}) is None}
    assert of_tests - free >= {"BASH_ENV", "PENSTOCK_ANSWER", "PENSTOCK_SEED", "PENSTOCK_UNTRUSTED"}
    given = {name: OWN.get(name, "of-the-task") for name in free}
    show = "\n".join(f'echo "{name}=<${name}>"' for name in given)
    async with BubblewrapProvider().open(SandboxSpec(files={}, env=given)) as sandbox:
        seen = (await sandbox.exec(["bash", "-c", show])).stdout.decode()
    for output in (seen, await graded(show, Environment(files={}, env=given)), await graded(show, env=given)):
        assert [name for name, value in given.items() if f"{name}=<{value}>" not in output] == []


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
