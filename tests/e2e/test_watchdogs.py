"""The real processes under their watchdogs: a hanging process is named from outside, and in a run without a hang no process is named."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.audited import no_violations
from tests.e2e.observer import PATIENCE_S, observing
from tests.e2e.stack_rig import Stack, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("stacks")]

# The event loops of a machine that is busy with other things are late, and nothing is wrong with them.
WATCHDOG = "\n[watchdog]\nno_progress_s = 6.0\nlag_s = 100.0\n"
PROCESSES = ("gateway", "orchestrator", "runner", "trainer", "verifier")


async def status(stack: Stack) -> tuple[int, dict[str, Any]]:
    """The exit status of `penstock status --json` and its output about the run."""
    done = await anyio.to_thread.run_sync(partial(stack.penstock, "status", "--json", timeout_s=PATIENCE_S))
    return done.returncode, json.loads(done.stdout).get("run", {})


async def test_a_process_that_hangs_is_named_by_status_and_the_run_goes_on_when_it_does(
    stack: Stack, model: Path
) -> None:
    stack.configure(model, batches=2, more=WATCHDOG)
    await stack.up()
    async with observing(stack.home) as seen:

        async def all_alive() -> bool:
            rows = await seen.rows("select process from processes where run_id = :run and not stopped")
            return tuple(sorted(row.process for row in rows)) == PROCESSES

        await until(all_alive, "every process says that it lives", PATIENCE_S)
        runner = stack.of("runner").pid
        assert runner is not None
        os.kill(runner, signal.SIGSTOP)
        try:
            await seen.publish(8)

            async def named() -> bool:
                code, run = await status(stack)
                sentences = [  # none if Postgres did not answer in time: look again
                    *run.get("stuck", []),
                    *(
                        stage["stall_cause"]["sentence"]
                        for stage in run.get("stages", [])
                        if "stall_cause" in stage
                    ),
                ]
                return code == 4 and any(
                    f"the runner (pid {runner} on " in sentence for sentence in sentences
                )

            await until(named, "the runner that hangs is named", PATIENCE_S)
        finally:
            os.kill(runner, signal.SIGCONT)
        await seen.until_ended()
        await seen.nothing_lost()
        await no_violations(stack, seen)
    written = {file.stem for file in stack.home.layout.run.glob("*.prom")}
    assert written == {*PROCESSES, "web"}
    assert "penstock_stage_open" in (stack.home.layout.run / "orchestrator.prom").read_text()
    assert stack.signalled(signal.SIGTERM) == 0
    assert stack.tracebacks() == []
