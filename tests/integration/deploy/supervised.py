"""Processes under a supervisor, for its tests."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.process_spec import (
    ProcessStatus,
)
from orchestrator.deploy.embedded.supervisor import Supervisor
from tests.waiting import eventually

SLEEP = ("/bin/sleep", "1000")
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run-directory")


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def until(supervisor: Supervisor, name: str, true: Callable[[ProcessStatus], bool]) -> ProcessStatus:
    with anyio.fail_after(60):
        while not true(status := supervisor.status(name)):
            await supervisor.change()
    return status


async def until_file(path: Path) -> str:
    await eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text()


def pid_of(supervisor: Supervisor, name: str) -> ProcessId:
    pid = supervisor.status(name).pid
    assert pid is not None
    return ProcessId.of(pid)
