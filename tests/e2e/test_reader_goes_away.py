"""`penstock up 2>&1 | tee log`: the reader of the pipe dies first, and everything still ends in order."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.deploy.embedded.process_spec import ProcessState
from tests.e2e.stack_rig import START_S, Stack, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("stacks")]

STOP_S = 90.0


def piped(stack: Stack) -> subprocess.Popen[bytes]:
    """A shell of its own process group, as a terminal starts a line inside the run's directory: `penstock up 2>&1 | tee up.log`. The exit status of
    `up` goes to a file, the id of `tee` to another."""
    line = '{ "$@" 2>&1; echo $? > up.status; } | { echo $BASHPID > tee.pid; exec tee up.log > /dev/null; }'
    up = [sys.executable, "-m", "orchestrator.cli", "up"]
    return subprocess.Popen(
        # The shell outlives SIGINT and writes the status; `tee` and `up` get the default again. Tests may themselves run under `nohup`.
        ["env", "--default-signal=HUP", "bash", "-c", f"trap : INT; {line}", "bash", *up],
        cwd=stack.directory,
        env=stack.environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


async def ended_in_order(stack: Stack, shell: subprocess.Popen[bytes]) -> None:
    """`up` has ended by itself with status 0, every process by its own stop, and nothing is left."""
    await until(lambda: shell.poll() is not None, "the line ends", STOP_S)
    assert (stack.directory / "up.status").read_text() == "0\n"
    states = {process.name: process.state for process in stack.status().processes}
    assert len(states) >= 7 and set(states.values()) == {ProcessState.STOPPED}, states
    exits = {process.name: process.last_exit for process in stack.status().processes}
    assert "killed by SIGKILL" not in exits.values(), exits
    assert stack.left_running() == [] and stack.tracebacks() == []


async def test_a_foreground_group_that_is_interrupted_ends_in_order_although_its_reader_dies_first(
    stack: Stack, model: Path
) -> None:
    stack.configure(model, batches=2)
    shell = piped(stack)
    try:
        await until(lambda: stack.log.exists() and stack.says_that_it_is_up(), "up", START_S)
        os.killpg(shell.pid, signal.SIGINT)
        await ended_in_order(stack, shell)
    finally:
        end(shell)


async def test_a_reader_that_is_killed_ends_nothing_and_a_closed_terminal_ends_in_order(
    stack: Stack, model: Path
) -> None:
    stack.configure(model, batches=2)
    shell = piped(stack)
    try:
        await until(lambda: stack.log.exists() and stack.says_that_it_is_up(), "up", START_S)
        tee = int((stack.directory / "tee.pid").read_text())
        os.kill(tee, signal.SIGKILL)
        killed = stack.kill("runner")  # its death and its start are lines that `up` writes
        await stack.back("runner", killed)
        assert shell.poll() is None
        os.kill(stack.status().supervisor.pid, signal.SIGHUP)
        await ended_in_order(stack, shell)
    finally:
        end(shell)


def end(shell: subprocess.Popen[bytes]) -> None:
    """End the processes that a failed test left of the line."""
    if shell.poll() is None:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(STOP_S)
