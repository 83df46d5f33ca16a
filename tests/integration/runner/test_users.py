"""Tasks that name users, from the assignment to the verdict: who runs the agent, its health check, its solution and the tests of each step."""

import os

import pytest

from tests.integration.runner.rig import Opens, a_task, runs, says
from tests.integration.runner.test_multi_step import ONE, TWO, a_multi_step_task, graded, judges

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.services,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have several users"),
]


async def test_agent_and_tests_of_a_task_run_as_the_users_that_it_names(opens: Opens) -> None:
    settings = '[agent]\nuser = 1234\n[verifier]\nuser = "4321"\n[environment.healthcheck]\ncommand = "id -u > healthy"\n'
    check = '[ "$(id -u)" = 4321 ] && [ "$(cat uid healthy | tr "\\n" " ")" = "1234 1234 " ] && [ "$(cat mine)" = secret ] && touch new'
    task = a_task(
        runs("id -u > uid; echo secret > mine; chmod 600 mine"), says("done"), check=check, settings=settings
    )
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        assert await rig.verdict(await rig.submit(task)) == 1.0
        plain = a_task(runs("id -u > uid"), says("done"), check='[ "$(id -u; cat uid)" = "1000\n1000" ]')
        assert await rig.verdict(await rig.submit(plain)) == 1.0


async def test_the_solutions_and_the_tests_of_steps_run_as_their_users(opens_at_work: Opens) -> None:
    settings = f'[agent]\nuser = "1234"\n[verifier]\nuser = "root"\n{ONE}[steps.verifier]\nuser = 77\n{TWO}'
    task = a_multi_step_task(
        settings,
        {
            "steps/one/solution/solve.sh": b"id -u > first\n",
            "steps/two/solution/solve.sh": b"id -u > second\n",
            "steps/two/workdir/given": b"x",
            "steps/one/tests/test.sh": judges('[ "$(id -u; cat first)" = "77\n1234" ]'),
            "steps/two/tests/test.sh": judges('[ "$(id -u; cat first second)" = "0\n1234\n1234" ]'),
        },
    )
    async with opens_at_work() as rig:
        found = await graded(rig, task)
        assert (found.reward, found.failure_class) == (1.0, "completed"), found
