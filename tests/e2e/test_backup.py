"""A backup of services that Penstock did not start, by the guide's own commands. PostgreSQL is dumped while the run continues, and
checkpoints are copied later. Then the database is lost, NATS is empty and the files are removed, and the run continues from the dump."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster
from tests.e2e.observer import observing
from tests.e2e.stack_rig import REPOSITORY, START_S, Stack, place, until
from tests.guides import blocks
from tests.violations import command_found_nothing

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(400), pytest.mark.tier("stacks")]

BATCHES, GROUPS = 3, 2  # of a batch
OPERATE = "ops/guides/operate.md"
COMMITTED = "select max(batch_no) as newest, count(*) as n from batches where state = 'committed'"
OPEN = """select count(*) as n from rollouts join groups using (group_id)
 where purpose = 'train' and rollouts.state in ('queued', 'running', 'reported', 'finished', 'verifying')"""
VERSIONS = "select count(*) as n, max(version) as newest from policy_versions"


@dataclass(frozen=True, slots=True)
class Own:
    """Servers that Penstock treats as external, and the directory that every process sees."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    shared: Path

    @property
    def urls(self) -> dict[str, str]:
        return {"DATABASE_URL": self.postgres.url, "NATS_URL": self.nats.url}

    async def lost(self) -> None:
        """An empty database, an empty NATS."""
        connection = await asyncpg.connect(self.postgres.url.replace("/penstock?", "/postgres?"))
        try:
            await connection.execute("DROP DATABASE penstock WITH (FORCE)")
            await connection.execute("CREATE DATABASE penstock")
        finally:
            await connection.close()
        await self.nats.stop()
        shutil.rmtree(self.nats.home.data_dir / "jetstream")
        await self.nats.start()


@pytest.fixture
async def own() -> AsyncIterator[Own]:
    async with AsyncExitStack() as ends:
        directory = ends.enter_context(place())
        ends.callback(discard_cluster, directory / "postgres")
        postgres = await ends.enter_async_context(EmbeddedPostgres(directory / "postgres", durable=False))
        nats = await ends.enter_async_context(EmbeddedNats(directory / "nats"))
        yield Own(postgres, nats, directory / "policies")


def ran(stack: Stack, own: Own, text: str) -> subprocess.CompletedProcess[str]:
    """A guide's lines as its reader runs them: with PostgreSQL's programs of the server's version, and directories of this test."""
    path = (own.postgres.cluster.binaries.directory, Path(sys.executable).parent, os.environ["PATH"])
    text = text.replace("/shared/policies", str(own.shared)).replace("runs/first", str(stack.directory))
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text.replace("alembic ", f"alembic -c {REPOSITORY}/alembic.ini ")],
        cwd=stack.directory,
        env=stack.environment(PATH=os.pathsep.join(map(str, path)), **own.urls),
        capture_output=True,
        text=True,
        timeout=120,
    )


def shell(stack: Stack, own: Own, text: str) -> None:
    """`ran`, and it must succeed."""
    done = ran(stack, own, text)
    assert done.returncode == 0, (text, done.stdout, done.stderr)


def stopped(stack: Stack) -> None:
    """Everything has ended, `penstock up` with it."""
    assert stack.penstock("down").stdout == "stopped\n"
    assert stack.process is not None and stack.process.wait(60) == 0, stack.last_output()


@contextmanager
def standing_still(stack: Stack, name: str) -> Iterator[None]:
    """One process stands still for that time."""
    pid = stack.of(name).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def says(stack: Stack, query: str) -> dict[str, int]:
    """The single row of a query."""
    row: dict[str, int] = json.loads(stack.penstock("sql", query, "--json").stdout)
    return row


async def test_a_run_on_services_of_its_own_goes_on_from_a_dump_and_checkpoints_copied_after_it(
    stack: Stack, model: Path, own: Own
) -> None:
    [dump, restore] = (block.text for block in blocks(OPERATE) if block.info in ("dump", "restore-dump"))
    services = f'[services]\ndatabase_url = "{own.postgres.url}"\nnats_url = "{own.nats.url}"\n'
    stack.configure(model, batches=BATCHES, more=services)
    file = stack.directory / "penstock.toml"
    file.write_text(file.read_text().replace("[policy]\n", f'[policy]\ndirectory = "{own.shared}"\n'))
    shell(stack, own, "alembic upgrade head")
    await stack.up()
    async with observing(stack.home) as seen:
        await seen.publish(BATCHES * GROUPS - 1)  # each must train, or the run does not end
        ledger = seen.ledger
        await seen.until_batches(1)
        database, checkpoints = dump.splitlines()
        with standing_still(stack, "verifier"):  # the last group, and with it the last batch, waits for it
            await seen.publish(1)
            await until(partial(seen.value, OPEN), "work is in flight", START_S)
            shell(stack, own, database)
            done = await seen.batches()
        await seen.until_batches(done + 1)
        shell(stack, own, checkpoints)
        later = await seen.batches()
    stopped(stack)
    await own.lost()

    run, policies, into, files, audit = restore.splitlines()
    shell(stack, own, run)
    shell(stack, own, policies)
    assert not stack.home.layout.root.exists() and not own.shared.exists(), (
        "nothing of before is left in place"
    )
    shell(stack, own, into)
    shell(stack, own, files)
    command_found_nothing(ran(stack, own, audit))  # what was restored is whole
    before = says(stack, COMMITTED)
    assert 1 <= before["n"] < later, "the dump is older than the copy of the checkpoints"
    assert says(stack, VERSIONS)["newest"] < max(
        int(path.name.partition("-")[2]) for path in own.shared.glob("**/version-*")
    ), "the copy has files of a version that the dump does not know"
    assert says(stack, OPEN)["n"] > 0, "work was in flight"

    await stack.up()
    async with observing(stack.home, ledger) as seen:
        await seen.until_ended()
        await seen.nothing_lost()
    log = (stack.home.layout.logs / "orchestrator.log").read_text()
    assert '"stream.rebuilt"' in log, "what NATS no longer had was published from PostgreSQL"
    assert says(stack, COMMITTED) == {"newest": before["newest"] - before["n"] + BATCHES, "n": BATCHES}
    ledger_file = stack.directory / "ledger.txt"
    ledger_file.write_text("".join(f"{name}\n" for name in ledger))
    command_found_nothing(stack.penstock("audit", "--ledger", str(ledger_file)))
    stopped(stack)
    assert (stack.tracebacks(), stack.left_running(), stack.sandboxes_left()) == ([], [], [])
