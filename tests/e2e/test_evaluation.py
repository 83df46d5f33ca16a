"""`penstock eval` during training: a version that training has left behind is evaluated on a server that is reserved for it."""

import json
import subprocess
from pathlib import Path

import anyio.to_thread
import pytest

from tests.e2e.observer import observing
from tests.e2e.stack_rig import Stack
from tests.violations import command_found_nothing

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(400), pytest.mark.tier("stacks")]

MADE = """
select g.purpose, s.v_lo, s.v_hi, count(*) as steps from steps s join rollouts r on r.rollout_id = s.rollout_id
  join groups g on g.group_id = r.group_id where s.run_id = :run group by 1, 2, 3"""


async def test_an_older_version_is_evaluated_while_training_continues(stack: Stack, model: Path) -> None:
    stack.configure(model, batches=2, more="\n[servers]\nembedded = 2\nevaluation = 1\n")
    made = stack.penstock_alone(
        "tasks", "generate", str(stack.directory / "suite"), "--train", "0", "--heldout", "3"
    )
    assert made.returncode == 0, made.stderr
    suite = str(stack.directory / "suite/heldout")

    async def evaluate(*options: str) -> subprocess.CompletedProcess[str]:
        command = ("eval", "--suite", suite, *options)
        return await anyio.to_thread.run_sync(lambda: stack.penstock(*command, timeout_s=200.0))

    await stack.up()
    async with observing(stack.home) as seen:
        await seen.publish(2)
        await seen.until_batches(1)
        positions = await seen.value("select next_seq from queue where run_id = :run")
        done = await evaluate("--policy", "0", "--rollouts", "2", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["suite"], found["version"], found["scored"], found["unscored"]) == ("heldout", 0, 3, 0)
        assert found["points"][-1]["n"] == 6
        assert positions == await seen.value("select next_seq from queue where run_id = :run")
        rows = await seen.rows(MADE)
        assert {(row.v_lo, row.v_hi) for row in rows if row.purpose == "eval"} == {(0, 0)}
        again = await evaluate("--policy", "0", "--rollouts", "2", "--json")
        assert json.loads(again.stdout) == found
        command_found_nothing(stack.penstock("audit", "--json"))
    assert stack.penstock("down").stdout == "stopped\n"
    assert (stack.left_running(), stack.sandboxes_left()) == ([], [])
