"""The scaffolds `oracle` and `nop` on real sandboxes, and the way of a reference solution, which leads to no other scaffold."""

from typing import Any

import pytest
from scaffolds.base import Context, Llm, TaskView
from scaffolds.declare import scaffold
from sqlalchemy import select

from orchestrator.contracts.states import Purpose
from orchestrator.pool.leases import WITHOUT_SOLUTION
from orchestrator.pool.tables import tasks
from orchestrator.tasks.harbor import Task
from sandboxes.base import Sandbox
from tests.integration.runner.rig import Opens, Rig, a_task

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

SOLVES = b"#!/bin/bash -e\n. /solution/lib/word.sh\necho $WORD$SUFFIX > out; id -un > who; echo solved\n"
SOLUTION = {"solution/solve.sh": SOLVES, "solution/lib/word.sh": b"WORD=do\n", "solution/blob": b"\xff\0"}


@scaffold(name="curious", version="1")
class Curious:
    """Answers with everything that it knows about a solution."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        found = await sandbox.exec(["bash", "-c", "ls -A /solution; grep -rls lib/word.sh / --include=*.sh"])
        return f"{task.solution} {found.stdout.decode()}"


@scaffold(name="untrained", version="1", trains=False)
class Untrained(Curious):
    """Never trains."""


def solved(**files: bytes) -> Task:
    settings = '[solution]\nenv = { SUFFIX = "ne" }\n'
    return a_task(settings=settings, files={**SOLUTION, **files})


async def evaluated(rig: Rig, task: Task, name: str) -> tuple[float, Any]:
    """The performance of one rollout, as an evaluation counts it, and its attempt."""
    rollout = await rig.submit(task, scaffold=name, purpose=Purpose.EVAL)
    scored = """SELECT w.performance FROM rewards w JOIN rollouts r USING (rollout_id) JOIN groups g USING (group_id)
                 WHERE rollout_id = :id AND g.state = 'scored'"""
    reward = (await rig.until(scored, lambda row: True, id=rollout)).performance
    (attempt,) = await rig.attempts(rollout)
    return reward, attempt


async def test_the_oracle_earns_the_reward_and_no_work_earns_none(opens_at_work: Opens) -> None:
    check = '[ "$(cat out)" = done ] && [ "$(cat who)" != root ] && [ "$(cat $PENSTOCK_ANSWER)" = solved ]'
    task = a_task(check=check, settings='[solution]\nenv = { SUFFIX = "ne" }\n', files=SOLUTION)
    async with opens_at_work() as rig:
        reward, attempt = await evaluated(rig, task, "oracle")
        assert (reward, attempt.failure_class, attempt.answer, attempt.steps) == (
            1.0,
            "completed",
            "solved\n",
            0,
        )
        assert attempt.scaffold == "oracle" and attempt.scaffold_version == "1"
        reward, attempt = await evaluated(rig, task, "nop")
        assert (reward, attempt.failure_class, attempt.answer, attempt.steps) == (0.0, "completed", "", 0)


async def test_a_solution_that_fails_is_graded_and_says_so(opens_at_work: Opens) -> None:
    broken = solved(**{"solution/solve.sh": b"echo done > out; echo 'no such thing' >&2; exit 3\n"})
    async with opens_at_work() as rig:
        reward, attempt = await evaluated(rig, broken, "oracle")
    assert (reward, attempt.failure_class) == (1.0, "policy_failure")
    assert attempt.reason == "solution/solve.sh ended with exit code 3: no such thing"


async def test_a_solution_may_print_a_build_log_and_wait_in_silence_as_when_it_is_vetted(
    opens_at_work: Opens,
) -> None:
    patient = b"#!/bin/bash -e\nhead -c 600000 /dev/zero | tr '\\0' '\\n'\nsleep 4\necho done > out\n"
    settings = "[agent]\nstall_s = 1.0\n"
    task = a_task(check='[ "$(cat out)" = done ]', settings=settings, files={"solution/solve.sh": patient})
    async with opens_at_work() as rig:
        reward, attempt = await evaluated(rig, task, "oracle")
    assert (reward, attempt.failure_class, attempt.reason) == (1.0, "completed", None)
    assert attempt.answer == ""


async def test_no_other_scaffold_is_given_a_solution_and_no_lease_carries_one(opens_at_work: Opens) -> None:
    task = solved()
    async with opens_at_work() as rig:
        reward, attempt = await evaluated(rig, task, f"{__name__}:Curious")
        assert (reward, attempt.answer.strip()) == (0.0, "None")
        async with rig.context.engine.connect() as connection:
            (leased,) = await connection.scalars(select(WITHOUT_SOLUTION).select_from(tasks))
            (whole,) = await connection.scalars(select(tasks.c.body))
    assert "solution/blob" in whole["files_b64"] and "solution/solve.sh" in whole["files"]
    expected = {path: body for path, body in whole["files"].items() if not path.startswith("solution/")}
    assert leased == {"files": expected, "files_b64": {}}


async def test_a_scaffold_that_never_trains_is_run_by_evaluations_alone(opens_at_work: Opens) -> None:
    async with opens_at_work() as rig:
        name = f"{__name__}:Untrained"
        rollout = await rig.submit(a_task(), scaffold=name, purpose=Purpose.TRAIN)
        row = await rig.state(rollout, "lost")
        assert row.reason.endswith(f"scaffold: rollouts of {name} are only evaluated")
        reward, _ = await evaluated(rig, a_task(check="true"), name)
        assert reward == 1.0
