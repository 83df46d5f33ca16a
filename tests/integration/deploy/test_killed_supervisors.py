"""A supervisor that is killed, and one that is stopped by a second signal or from outside: its processes end."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import anyio
import pytest

from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.leftovers import find_leftovers
from orchestrator.deploy.embedded.process_spec import (
    ProcessState,
)
from orchestrator.deploy.embedded.supervisor import Supervisor, read_status, stop_running
from tests.integration.deploy.supervised import REPOSITORY, SLEEP, layout
from tests.waiting import eventually

__all__ = ["layout"]
pytestmark = [pytest.mark.anyio, pytest.mark.tier("processes")]


PROGRAM = """
import sys
from pathlib import Path
import anyio
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.process_spec import ProcessSpec
from orchestrator.deploy.embedded.supervisor import Supervisor

async def main() -> None:
    async with Supervisor(RunLayout(Path(sys.argv[1])), obey_signals=True) as supervisor:
        supervisor.add(
            ProcessSpec(name="plain", argv=("/bin/sleep", "1000")),
            ProcessSpec(name="parent", argv=("/bin/sh", "-c", "setsid sleep 1000 & wait")),
            ProcessSpec(name="stubborn", argv=("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1000; done"), grace_s=1000),
        )
        await supervisor.ready()
        print("ready", flush=True)
        await supervisor.until_stopped()

anyio.run(main)
"""


def start_program(layout: RunLayout) -> subprocess.Popen[str]:
    """A supervisor in a process of its own, with all its children ready."""
    argv = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(layout.root)]
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.stdout.close()
    return program


def children_of(layout: RunLayout) -> list[ProcessId]:
    status = read_status(layout)
    assert status is not None
    return [ProcessId.of(process.pid) for process in status.processes if process.pid is not None]


async def test_children_die_with_a_killed_supervisor_and_the_next_one_ends_the_rest(
    layout: RunLayout,
) -> None:
    program = start_program(layout)
    children = children_of(layout)
    assert len(children) == 3
    program.kill()
    program.wait()
    for child in children:
        assert await child.gone(60)
    # A grandchild in a session of its own lives on, until the next supervisor finds its mark.
    assert len(find_leftovers(layout)) >= 1
    async with Supervisor(layout, leftover_grace_s=0.2) as supervisor:
        assert supervisor.leftovers >= 1
        assert find_leftovers(layout) == {}


def start_sleeper(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEP, env=environment, start_new_session=True)


async def test_a_leftover_is_found_by_pid_and_start_time_and_a_stranger_with_its_pid_is_spared(
    layout: RunLayout,
) -> None:
    layout.create()
    environment = {"PATH": os.defpath}
    leftover = start_sleeper(environment)
    stranger = start_sleeper(environment)
    try:
        for name, process, wrong_by in (("leftover", leftover, 0), ("stranger", stranger, 1)):
            identity = ProcessId.of(process.pid)
            record = {
                "process": {
                    "pid": identity.pid,
                    "started": identity.started - wrong_by,
                    "boot": identity.boot,
                },
                "stop_signal": int(signal.SIGTERM),
            }
            layout.pid(name).write_text(json.dumps(record))
        async with Supervisor(layout) as supervisor:
            assert supervisor.leftovers == 1
            assert leftover.wait(60) == -signal.SIGTERM
            assert stranger.poll() is None
    finally:
        for process in (leftover, stranger):
            process.kill()
            process.wait()


async def test_a_second_signal_ends_the_patience(layout: RunLayout) -> None:
    program = start_program(layout)
    children = children_of(layout)
    program.send_signal(signal.SIGTERM)
    plain = children[0]
    assert await plain.gone(60)
    assert program.poll() is None, "the stubborn one has a long grace"
    program.send_signal(signal.SIGINT)
    assert program.wait(60) == 0
    assert not any(child.alive for child in children)


async def test_a_run_directory_can_be_stopped_from_outside(layout: RunLayout) -> None:
    assert await stop_running(layout) is False
    program = start_program(layout)
    stubborn = children_of(layout)[2]
    async with anyio.create_task_group() as tasks:

        async def stop() -> None:
            assert await stop_running(layout) is True

        tasks.start_soon(stop)
        await eventually(
            lambda: read_status(layout),
            lambda status: status is not None and status.processes[2].state is ProcessState.STOPPING,
        )
        stubborn.send(signal.SIGKILL)
        # The supervisor is this test's child, so it stays a zombie until it is waited for; a zombie is gone.
    assert program.wait(60) == 0
    assert await stop_running(layout) is False


STARTS = """
import os, sys, time
from pathlib import Path
import msgspec
from orchestrator.deploy.embedded.file_lock import try_lock
from orchestrator.deploy.embedded.identity import ProcessId
lock = try_lock(Path(sys.argv[1]))
os.pwrite(lock, msgspec.json.encode(ProcessId.mine()), 0)
print("starts", flush=True)
time.sleep(1000)
"""


def starting(layout: RunLayout) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", STARTS, str(layout.lock)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


async def test_a_supervisor_that_still_starts_is_ended_too(layout: RunLayout) -> None:
    """It holds the lock, and has written no status yet."""
    layout.create()
    with starting(layout) as program:
        assert program.stdout is not None and program.stdout.readline() == "starts\n"
        assert await stop_running(layout) is True
        assert program.wait(60) == -signal.SIGTERM
    assert await stop_running(layout) is False
