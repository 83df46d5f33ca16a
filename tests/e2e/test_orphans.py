"""kill -9 of `penstock up` itself, without a new start for a while: the fate of the run and of everything that it had started."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.audited import no_violations
from tests.e2e.observer import observing
from tests.e2e.stack_rig import Stack, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(400), pytest.mark.tier("stacks")]

PATIENCE_S = 60.0  # each look reads the mounts of every process of the machine


async def test_after_kill_9_of_the_supervisor_nothing_keeps_running_stopped_processes_and_sandboxes_included(
    stack: Stack, model: Path
) -> None:
    stack.configure(model, batches=1, lease_ttl_s=10.0)
    await stack.up()
    async with observing(stack.home) as seen:
        await seen.publish(4, seconds=300.0)
        await seen.until_at_work("verifier")
        await until(lambda: bool(stack.sandboxes_left()), "a sandbox is at work", PATIENCE_S)
    runner = stack.of("runner").pid
    assert runner is not None
    os.kill(runner, signal.SIGSTOP)
    assert len(stack.left_running()) > len(stack.status().processes)
    [socket] = stack.sandbox_root.parent.glob("penstock-gateways-*/*/gateway.sock")
    stack.signalled(signal.SIGKILL)
    await until(lambda: stack.left_running() == [] == stack.sandboxes_left(), "nothing is left", PATIENCE_S)
    await until(lambda: not socket.parent.exists(), "the gateway's socket is gone, too", PATIENCE_S)
    await stack.up()
    async with observing(stack.home, seen.ledger) as again:
        await again.until_leased()
        await no_violations(stack, again)
    assert stack.signalled(signal.SIGTERM) == 0
    endpoint = json.loads((stack.home.layout.postgres / "server.json").read_text())
    assert not Path(endpoint["sockets"]).exists(), "where the sockets of PostgreSQL lay is left"
