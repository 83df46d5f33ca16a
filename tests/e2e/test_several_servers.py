"""`penstock up` with several rollout servers: each serves, and a server that dies comes back at the policy version of the run."""

import signal
from pathlib import Path

import pytest

from tests.e2e.audited import no_violations
from tests.e2e.observer import PATIENCE_S, observing
from tests.e2e.stack_rig import Stack, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("stacks")]


async def test_up_starts_as_many_rollout_servers_as_configured_and_a_dead_one_serves_again(
    stack: Stack, model: Path
) -> None:
    stack.configure(model, batches=1, more="\n[servers]\nembedded = 2\n")
    await stack.up("--only", "rollout-server,orchestrator,gateway,trainer")
    ready = "select count(*) from rollout_servers where run_id = :run and state = 'ready' and version = 0"
    changed = "select max(changed) from rollout_servers where run_id = :run"
    async with observing(stack.home) as seen:

        async def both() -> bool:
            return bool(await seen.value(ready) == 2)

        async def one_again() -> bool:
            return bool(await seen.value(f"{ready} and changed > :before", before=before) == 1)

        await until(both, "both servers are at version 0", PATIENCE_S)
        before = await seen.value(changed)
        killed = stack.kill("rollout-server-2")
        await stack.back("rollout-server-2", killed)
        await until(one_again, "the gateway noticed the death and gave it version 0 again", PATIENCE_S)
        await until(both, "both servers are at version 0 again", PATIENCE_S)
        await no_violations(stack, seen)
    assert stack.signalled(signal.SIGTERM) == 0
    assert stack.tracebacks() == [] and stack.left_running() == []
