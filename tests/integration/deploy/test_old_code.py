"""Code that a contraction has left behind, and a database at a removed revision: every process, and every command that writes,
reports it at its start, in one sentence, before it does anything."""

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

from orchestrator.contracts.states import RunState
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import Home, write_template
from orchestrator.deploy.stack import migrate
from orchestrator.pool.engine import FIRST, REVISION, OldDatabase, open_engine
from orchestrator.settings.config import Config, load
from tests import builders
from tests.integration.pool.test_migrations import NEXT, contracting
from tests.services import upgrade_to_head

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.services,
    pytest.mark.timeout(300),
    pytest.mark.tier("processes"),
]

REPOSITORY = Path(__file__).resolve().parents[3]
SENTENCE = (
    f"penstock: the database is at revision {NEXT}, on which code older than {NEXT} cannot run; this is {REVISION}: "
    "start the version of Penstock that the database was upgraded for\n"
)
REMOVED_REVISION = (
    f"penstock: the database is at revision 0107, and this version of Penstock migrates from {FIRST} on: first upgrade it to {FIRST} with "
    "the release before this one, or use a new database, or with `penstock up` a new directory (ops/guides/upgrade.md)\n"
)
COMMANDS = {
    "orchestrator": (),
    "gateway": (),
    "runner": ("--gateway", "http://127.0.0.1:9"),
    "verifier": (),
    "cluster wait": ("--run", "--timeout", "600"),
    "drain runner runner": ("--wait",),
    "rewind": ("--to-batch", "0"),
    "rescore": (),
    "prune": (),
    "run end": (),
    "dead drop m1": (),
    "dead retry m1": (),
    "audit": (),
}


@pytest.fixture
async def home(empty_database_url: str, tmp_path: Path) -> Path:
    """Home of a run in the database, which is at this code's revision."""
    await anyio.to_thread.run_sync(upgrade_to_head, empty_database_url)
    home = tmp_path / "run"
    home.mkdir()
    write_template(home, f"r{secrets.token_hex(4)}", "")
    async with open_engine(empty_database_url) as owner:
        await builders.make_run(owner, load(Home.at(home).file))
    return home


async def test_every_process_of_the_previous_code_says_so_in_one_sentence_and_touches_nothing(
    home: Path, empty_database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    # The code of this test is the previous one to a database that a later version has contracted.
    later = contracting(tmp_path / "migrations", empty_database_url)
    await anyio.to_thread.run_sync(command.upgrade, later, "head")
    await everyone_says(SENTENCE, home, empty_database_url, nats_server)


async def test_every_process_refuses_a_database_at_a_removed_revision_at_once(
    home: Path, empty_database_url: str, nats_server: EmbeddedNats
) -> None:
    async with open_engine(empty_database_url) as owner, owner.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0107'"))
    await everyone_says(REMOVED_REVISION, home, empty_database_url, nats_server)
    config = Config.model_validate({"services": {"database_url": empty_database_url}})
    for own in (True, False):  # `penstock up`, with its own PostgreSQL or with another
        with pytest.raises(OldDatabase) as refused:
            await migrate(config, own=own)
        assert f"penstock: {refused.value}\n" == REMOVED_REVISION


async def everyone_says(sentence: str, home: Path, url: str, nats_server: EmbeddedNats) -> None:
    """Every command ends with it and with nothing else, and leaves no trace in the database."""
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "NATS_URL": nats_server.url,
        "PYTHONPATH": str(REPOSITORY),
    }
    results: dict[str, tuple[int, str]] = {}

    async def start(what: str, *options: str) -> None:
        done: subprocess.CompletedProcess[bytes] = await anyio.run_process(
            [sys.executable, "-m", "orchestrator.cli", *what.split(), "-c", str(home), *options],
            env=environment,
            cwd=home,
            check=False,
        )
        results[what] = (done.returncode, done.stderr.decode())

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for what, options in COMMANDS.items():
                tasks.start_soon(start, what, *options)
    assert results == dict.fromkeys(COMMANDS, (1, sentence))
    async with open_engine(url) as owner, owner.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM processes")) == 0
        assert await connection.scalar(text("SELECT state FROM runs")) == RunState.ACTIVE
