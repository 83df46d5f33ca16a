"""An error ends the trainer's process at once, whatever a thread still does: its lock on the checkpoints is free from then on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.tier("trainer")]

BROKEN = """
import sys, threading
import anyio, anyio.to_thread
import trainer.loop
from orchestrator.contracts.errors import ServiceError
from trainer.__main__ import main

async def broken(settings):
    standing = threading.Event()

    def stands():  # a train step, or a save
        standing.set()
        threading.Event().wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: anyio.to_thread.run_sync(stands, abandon_on_cancel=True))
        await anyio.to_thread.run_sync(standing.wait)
        raise {error}

trainer.loop.run_trainer = broken
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("error", "last"),
    [
        ("ServiceError('Postgres is gone')", "trainer: Postgres is gone"),
        ("RuntimeError('of the heartbeat')", "RuntimeError: of the heartbeat"),
    ],
    ids=["for people", "any"],
)
def test_an_error_ends_the_process_although_a_thread_still_works(
    tmp_path: Path, error: str, last: str
) -> None:
    argv = [sys.executable, "-c", BROKEN.replace("{error}", error)]
    argv += ["--run", "test", "--policies", str(tmp_path), "--subject", "policy.test"]
    given = {"DATABASE_URL": "postgresql://trainer@127.0.0.1:1/test", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        argv, env=os.environ | given, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1 and last in ended.stderr, ended.stderr
