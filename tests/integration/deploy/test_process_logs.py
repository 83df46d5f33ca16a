"""Logs of supervised processes: bounded, whole, and closed to other users."""

import os
import re
from pathlib import Path

import pytest

from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.process_spec import (
    ProcessSpec,
)
from orchestrator.deploy.embedded.spawn import open_log, shorten_log
from orchestrator.deploy.embedded.supervisor import Supervisor
from tests.integration.deploy.supervised import layout, shell, until_file
from tests.waiting import eventually

__all__ = ["layout"]
pytestmark = [pytest.mark.anyio, pytest.mark.tier("processes")]


async def test_the_log_of_a_running_process_stays_bounded_and_goes_on(layout: RunLayout) -> None:
    log, earlier = layout.log("talker"), layout.log("talker").with_name("talker.log.1")

    def last() -> int:
        found = re.findall(r"line (\d+) of many\n", log.read_text()) if log.exists() else []
        return int(found[-1]) if found else 0

    async with Supervisor(layout, log_bytes=20_000) as supervisor:
        talk = shell("n=0; while :; do n=$((n + 1)); echo line $n of many; sleep 0.001; done")
        supervisor.add(ProcessSpec(name="talker", argv=talk))
        await eventually(earlier.exists, within_s=60)
        seen = await eventually(last, within_s=60)
        await eventually(last, lambda number: number > seen, within_s=60)


def test_a_log_that_is_shortened_keeps_every_line_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    descriptor = open_log(log)
    os.write(descriptor, b"one\n" * 10)
    assert not shorten_log(log, 40) and shorten_log(log, 39)
    os.write(descriptor, b"two\n")
    os.close(descriptor)
    assert (log.read_bytes(), log.with_name("worker.log.1").read_bytes()) == (b"two\n", b"one\n" * 10)


def test_other_users_of_the_machine_read_neither_logs_nor_weights_nor_journals(layout: RunLayout) -> None:
    layout.create()
    inside = (*layout.root.iterdir(), *layout.data.iterdir())
    modes = {path.name: path.stat().st_mode & 0o777 for path in (layout.root, *inside)}
    assert modes == {
        "run-directory": 0o711,
        "data": 0o711,
        "postgres": 0o711,
        "nats": 0o700,
        "run": 0o700,
        "logs": 0o700,
        "policies": 0o700,
        "journal": 0o700,
    }
    layout.logs.chmod(0o755)  # as an earlier version made it
    layout.create()
    assert layout.logs.stat().st_mode & 0o777 == 0o700
    os.close(open_log(layout.log("worker")))
    assert layout.log("worker").stat().st_mode & 0o777 == 0o600


async def test_a_log_that_grew_too_large_is_put_aside_at_the_next_start(layout: RunLayout) -> None:
    layout.create()
    with layout.log("worker").open("wb") as log:
        log.truncate(51 * 1024 * 1024)
    async with Supervisor(layout) as supervisor:
        supervisor.add(ProcessSpec(name="worker", argv=shell("echo hello; exec sleep 1000")))
        assert await until_file(layout.log("worker")) == "hello\n"
    assert layout.log("worker").with_name("worker.log.1").stat().st_size == 51 * 1024 * 1024
