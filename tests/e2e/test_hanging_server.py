"""A rollout server that `penstock up` starts by a command keeps its key private; when it hangs, it is started again, and nothing is lost."""

import json
import os
import signal
import stat
import sys
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.e2e.audited import no_violations
from tests.e2e.observer import PATIENCE_S, observing
from tests.e2e.stack_rig import Stack, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("faults")]

COMMAND = [
    sys.executable, "-m", "trainer.serving", "--model-path", "{model}", "--port", "{port}", "--key-file", "{key_file}",
]  # fmt: skip
SERVERS = f"\n[servers]\nhang_s = 8.0\nsilence_s = 2.0\ncommand = {json.dumps(COMMAND)}\n"


async def the_key_stays_with_its_user(stack: Stack) -> None:
    """Not on a command line, which every user reads; the server requires it."""
    key = (stack.home.layout.run / "server.key").read_text().strip()
    config = stack.home.server_key_config
    assert yaml.safe_load(config.read_text()) == {"api-key": key, "admin-api-key": key}
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    command = Path(f"/proc/{stack.of('rollout-server').pid}/cmdline").read_text()
    assert key not in command and str(stack.home.layout.run) in command
    port = command.split("\0")[command.split("\0").index("--port") + 1]
    async with aiohttp.ClientSession() as http:
        async with http.post(f"http://127.0.0.1:{port}/pause_generation", json={}) as answer:
            assert answer.status == 401


async def test_the_only_rollout_server_of_a_run_hangs_and_the_run_goes_on(stack: Stack, model: Path) -> None:
    stack.configure(model, batches=10_000, more=SERVERS)
    await stack.up()
    await the_key_stays_with_its_user(stack)
    async with observing(stack.home) as seen:

        async def serves() -> bool:
            query = "select count(*) = 1 from rollout_servers where run_id = :run and state = 'ready'"
            return bool(await seen.value(query))

        await until(serves, "the server has the first version", PATIENCE_S)
        await seen.publish(16, seconds=0.2)
        await seen.until_at_work("runner")
        done, hanging = await seen.batches(), stack.of("rollout-server").pid
        assert hanging is not None
        os.kill(hanging, signal.SIGSTOP)
        await stack.back("rollout-server", hanging)
        status = stack.of("rollout-server")
        assert (status.restarts, status.last_exit) == (1, "killed by SIGKILL")
        # The rollouts that were under way end with it as well.
        await seen.publish(8, seconds=0.2)
        await seen.until_batches(done + 1)
        named = stack.home.layout.log("gateway").read_text()
        assert "it hangs (it takes connections and does not answer)" in named
        assert "process.hangs" in stack.log.read_text()
        assert stack.penstock("run", "end").returncode == 0
        await seen.until_ended()
        await seen.nothing_lost()
        await no_violations(stack, seen)
    assert stack.signalled(signal.SIGTERM) == 0
    assert (stack.tracebacks(), stack.left_running(), stack.sandboxes_left()) == ([], [], [])
