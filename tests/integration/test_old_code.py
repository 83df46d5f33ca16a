"""Code that a contraction has left behind is refused by the database: by every process at its start, in one sentence, before it does anything."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from alembic import command
from sqlalchemy import text

from orchestrator.config import load
from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.home import Home, write_template
from orchestrator.pool.engine import REVISION, open_engine
from tests import builders
from tests.integration.test_migrations import contracting
from tests.services import upgrade_to_head

pytestmark = [pytest.mark.anyio, pytest.mark.services]

REPOSITORY = Path(__file__).resolve().parents[2]
LATER = f"{int(REVISION) + 1:04}"
SENTENCE = (
    f"penstock: the database is at revision {LATER}, on which code older than {LATER} cannot run; this is {REVISION}: "
    "start the version of Penstock that the database was upgraded for\n"
)
COMMANDS = {
    "orchestrator": (),
    "gateway": (),
    "runner": ("--gateway", "http://127.0.0.1:9"),
    "verifier": (),
    "cluster wait": ("--run", "--timeout", "600"),
    "drain runner runner": ("--wait",),
}


async def test_every_process_of_the_previous_code_says_so_in_one_sentence_and_touches_nothing(
    empty_database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    await anyio.to_thread.run_sync(upgrade_to_head, empty_database_url)
    home = tmp_path / "run"
    home.mkdir()
    write_template(home, f"r{secrets.token_hex(4)}", "")
    async with open_engine(empty_database_url) as owner:
        await builders.make_run(owner, load(Home.at(home).file))
    # The code of this test is the previous one to a database that a later version has contracted.
    later = contracting(tmp_path / "migrations", empty_database_url, LATER)
    await anyio.to_thread.run_sync(command.upgrade, later, "head")
    environment = {
        **os.environ,
        "DATABASE_URL": empty_database_url,
        "NATS_URL": nats_server.url,
        "PYTHONPATH": str(REPOSITORY),
    }
    said: dict[str, tuple[int, str]] = {}

    async def start(what: str, *options: str) -> None:
        done: subprocess.CompletedProcess[bytes] = await anyio.run_process(
            [sys.executable, "-m", "orchestrator.cli", *what.split(), "-c", str(home), *options],
            env=environment, cwd=tmp_path, check=False,
        )  # fmt: skip
        said[what] = (done.returncode, done.stderr.decode())

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for what, options in COMMANDS.items():
                tasks.start_soon(start, what, *options)
    assert said == dict.fromkeys(COMMANDS, (1, SENTENCE))
    async with open_engine(empty_database_url) as owner, owner.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM processes")) == 0
