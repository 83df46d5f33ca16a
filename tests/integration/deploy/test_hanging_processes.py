"""A supervised process that takes work and does not answer any more is ended and started again."""

import signal
from pathlib import Path

import pytest

from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.process_spec import ProcessSpec, ProcessState
from orchestrator.deploy.embedded.supervisor import Supervisor
from tests.integration.deploy.supervised import SLEEP, layout, pid_of, until
from tests.waiting import eventually

__all__ = ["layout"]
pytestmark = [pytest.mark.anyio, pytest.mark.tier("processes")]


async def test_a_process_that_hangs_is_killed_and_started_again(layout: RunLayout) -> None:
    async with Supervisor(layout) as supervisor:

        async def answers() -> bool:
            pid = supervisor.status("worker").pid
            return pid is None or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"

        supervisor.add(ProcessSpec(name="worker", argv=SLEEP, answers=answers, hang_s=0.2))
        await supervisor.ready()
        first = pid_of(supervisor, "worker")
        first.send(signal.SIGSTOP)
        await until(supervisor, "worker", lambda s: s.state is ProcessState.BACKOFF)
        detail = supervisor.status("worker").detail
        assert detail is not None and detail.startswith("hanging: it did not answer for ")
        await until(supervisor, "worker", lambda s: s.state is ProcessState.READY and s.pid != first.pid)
        assert not first.alive and supervisor.status("worker").restarts == 1


async def test_a_process_that_answers_now_and_then_does_not_hang(layout: RunLayout) -> None:
    looks = 0

    async def answers() -> bool:
        nonlocal looks
        looks += 1
        return looks % 3 == 0

    async with Supervisor(layout) as supervisor:
        supervisor.add(ProcessSpec(name="worker", argv=SLEEP, answers=answers, hang_s=6.0))
        await supervisor.ready()
        first = supervisor.status("worker").pid
        await eventually(lambda: looks > 18)  # in a row, they would be enough
        assert (supervisor.status("worker").pid, supervisor.status("worker").restarts) == (first, 0)
