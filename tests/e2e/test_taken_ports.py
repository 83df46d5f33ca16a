"""Processes of a running `penstock up` die, and another user of the machine takes their ports: the run goes on, and its secrets stay its own."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.audited import no_violations
from tests.e2e.observer import observing
from tests.e2e.stack_rig import Stack
from tests.squatter import NATS, POSTGRES, squatting

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("stacks")]

# The squatter has time to take a port before the process starts again. Each process has more than one life.
MORE = "\n[processes]\nrestart_first_s = 2.0\n"
SECRETS = (
    "data/nats/token",
    "data/postgres/password",
    "run/gateway.secret",
    "run/server.key",
    "run/web.token",
)


def _recorded_port(service: str) -> Callable[[Stack], int]:
    return lambda stack: int(
        json.loads((stack.home.layout.data / service / "server.json").read_text())["port"]
    )


def _port_of_rollout_server(stack: Stack) -> int:
    argv = Path(f"/proc/{stack.of('rollout-server').pid}/cmdline").read_text().split("\0")
    return int(argv[argv.index("--port") + 1])


def _port_in(file: Callable[[Stack], Path]) -> Callable[[Stack], int]:
    return lambda stack: urlsplit(file(stack).read_text().strip()).port or 0


MOVE = {"nats": (_recorded_port("nats"), NATS, b""), "postgres": (_recorded_port("postgres"), b"", POSTGRES)}
"""They cannot inherit a socket: the squatter gets the port."""
HELD = {
    "rollout-server": _port_of_rollout_server,
    "gateway": _port_in(lambda stack: stack.home.gateway_url_file),
    "web": _port_in(lambda stack: stack.home.web_url_file),
}


async def test_a_run_whose_ports_are_taken_after_each_crash_ends_rightly_and_gives_away_no_secret(
    stack: Stack, model: Path
) -> None:
    stack.configure(model, batches=10_000, more=MORE)
    await stack.up()
    received = b""
    async with observing(stack.home) as seen:
        await seen.publish(4, seconds=0.2)
        for name, (port, greeting, answer) in MOVE.items():
            done = await seen.batches()
            with squatting(stack.directory, port(stack), greeting=greeting, answer=answer) as squatter:
                killed = stack.kill(name)
                await squatter.until_listening()
                await stack.back(name, killed)
                await seen.publish(4, seconds=0.2)
                await seen.until_batches(done + 1)
                received += squatter.received
        shown = stack.penstock("status").stdout
        assert "nats: moved to port " in shown and "postgres: only on its Unix socket" in shown, shown
        for name, held in HELD.items():
            done = await seen.batches()
            with squatting(stack.directory, before := held(stack)) as squatter:
                killed = stack.kill(name)
                await stack.back(name, killed)
                await seen.publish(4, seconds=0.2)
                await seen.until_batches(done + 1)
                assert squatter.process.poll() is None and not squatter.listens
                assert held(stack) == before
        assert stack.penstock("run", "end").returncode == 0
        await seen.until_ended()
        await seen.nothing_lost()
        await no_violations(stack, seen)
    output = stack.last_output()
    assert "nats ready  moved to port " in output and "postgres ready  only on its Unix socket" in output, (
        output
    )
    secrets = [(stack.home.layout.root / file).read_text().strip() for file in SECRETS]
    assert all(secrets) and not [secret for secret in secrets if secret.encode() in received]
    assert stack.signalled(signal.SIGTERM) == 0
    assert stack.tracebacks() == []
    assert (stack.left_running(), stack.sandboxes_left()) == ([], [])
