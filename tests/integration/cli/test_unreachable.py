"""A command that cannot reach a service says in one sentence which service, at which address, what names the address, and what to do.

Every row is a real process; what it meets is a closed port, a real server of another kind, or PostgreSQL and NATS that refuse the login.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster
from orchestrator.deploy.home import write_template

pytestmark = [pytest.mark.services, pytest.mark.tier("look")]

REPOSITORY = Path(__file__).resolve().parents[3]
CLOSED = "postgresql://u:secret@127.0.0.1:1/pool"
CLOSED_NATS = "nats://secret@127.0.0.1:1"
SERVICES = ("DATABASE_URL", "NATS_URL")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_template(tmp_path / "first", "first", "")
    return tmp_path / "first"


def refused(*arguments: str, environment: Mapping[str, str] | None = None, status: int = 1) -> str:
    """The sentence of a process that ends with `status`."""
    own = {k: v for k, v in os.environ.items() if not k.removesuffix("_FILE").endswith(SERVICES)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=REPOSITORY,
        env={**own, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()  # alembic says it on standard output
    assert done.returncode not in (0, 2), done
    assert "Traceback" not in done.stderr and "secret" not in done.stderr
    assert not re.search(r"\b\w+(Error|Exception)\b|Errno|nats: ", done.stderr), done.stderr
    assert len(lines) == 1, lines
    return lines[0]


def penstock(run: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    return refused("orchestrator.cli", *arguments, "-c", str(run), environment=environment)


def name_in_file(run: Path, key: str, url: str) -> None:
    file = run / "penstock.toml"
    file.write_text(f'{file.read_text()}\n[services]\n{key} = "{url}"\n')


@pytest.mark.parametrize("source", ["variable", "file of a variable", "key", "embedded"])
def test_the_sentence_names_what_names_the_address(
    source: str, run: Path, tmp_path: Path, services_directory: Path
) -> None:
    environment, place = {}, "127.0.0.1:1/pool"
    if source == "variable":
        environment = {"DATABASE_URL": CLOSED}
        advice = "DATABASE_URL in the environment names it; start it, or correct or unset that variable"
    elif source == "file of a variable":
        secret = tmp_path / "url"
        secret.write_text(CLOSED)
        environment = {"DATABASE_URL_FILE": str(secret)}
        advice = (
            f"the file {secret}, which DATABASE_URL_FILE in the environment names, names it; "
            "start it, or correct that file"
        )
    elif source == "key":
        environment = {"DATABASE_URL": "postgresql://other:secret@127.0.0.1:2/other"}  # the file's counts
        name_in_file(run, "database_url", CLOSED)
        advice = f"services.database_url of {run / 'penstock.toml'} names it; start it, or correct that key"
    else:
        with_postgres = RunLayout(run / ".penstock").postgres
        place = stopped(with_postgres)
        advice = f"it is the embedded one of {run}; start the run: `penstock up -c {run}`"
    sentence = penstock(run, "sql", "select 1", environment=environment)
    discard_cluster(RunLayout(run / ".penstock").postgres)
    assert sentence == f"penstock: PostgreSQL at {place} cannot be used (nothing listens there): {advice}"


def a_task(directory: Path) -> Path:
    task = directory / "task"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("Write hi into out.txt.\n")
    (task / "tests/test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    return task


def stopped(data: Path) -> str:
    """The place of an embedded PostgreSQL that ran once."""
    import anyio

    from orchestrator.pool.address import place_of

    async def once() -> str:
        async with EmbeddedPostgres(data, durable=False) as server:
            return place_of(server.socket_url)

    return anyio.run(once)


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        ("no host", "the name of its host is unknown"),
        ("login", "it refuses the login penstock: "),
        ("database", "it has no database absent"),
        ("another server", "its answer is not PostgreSQL's"),
        ("no TLS", "it does not speak TLS, which sslmode=require asks for"),
    ],
)
def test_the_sentence_says_why_postgres_cannot_be_used(
    failure: str, why: str, run: Path, database_url: str, nats_server: EmbeddedNats
) -> None:
    from orchestrator.pool.address import address_of

    address = address_of(database_url)
    port = re.search(r":(\d+)$", nats_server.url)
    assert port is not None and address.user is not None
    url = {
        "no host": "postgresql://u:secret@absent.invalid/pool",
        "login": address.of(address.user, "secret"),
        "database": re.sub(r"(dbname=|:\d+/)[^&?]+", r"\1absent", database_url),
        "another server": f"postgresql://u:secret@127.0.0.1:{port[1]}/pool",
        "no TLS": f"{database_url}{'&' if '?' in database_url else '?'}sslmode=require",
    }[failure]
    sentence = penstock(run, "sql", "select 1", environment={"DATABASE_URL": url})
    assert f" cannot be used ({why}" in sentence
    assert sentence.endswith("correct or unset that variable")
    assert ("start it" in sentence) == (failure == "no host")


@pytest.mark.parametrize(
    "command",
    [
        ("show", "rollout", "1"),
        ("status",),
        ("rewind", "--to-batch", "0"),
        ("eval", "list"),
        ("export", "atif", "--out", "absent"),
        ("audit",),
        ("orchestrator",),
        ("dead", "list"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_reads_the_pool_says_the_same(command: tuple[str, ...], run: Path) -> None:
    environment = {"DATABASE_URL": CLOSED, "NATS_URL": CLOSED_NATS}
    sentence = penstock(run, *command, environment=environment)
    assert "PostgreSQL at 127.0.0.1:1/pool cannot be used (nothing listens there): " in sentence
    assert sentence.endswith(
        "DATABASE_URL in the environment names it; start it, or correct or unset that variable"
    )


@pytest.mark.parametrize("by", ["variable", "key"])
def test_a_bus_that_is_away_is_named_with_its_source(by: str, run: Path) -> None:
    task = a_task(run)
    advice = "NATS_URL in the environment names it; start it, or correct or unset that variable"
    environment = {"DATABASE_URL": CLOSED, "NATS_URL": CLOSED_NATS}
    if by == "key":
        name_in_file(run, "nats_url", environment.pop("NATS_URL"))
        advice = f"services.nats_url of {run / 'penstock.toml'} names it; start it, or correct that key"
    sentence = penstock(run, "tasks", "publish", str(task), environment=environment)
    assert sentence == f"penstock: NATS does not answer at 127.0.0.1:1 (nothing listens there): {advice}"


def test_migrations_say_the_same() -> None:
    sentence = refused("alembic", "current", environment={"DATABASE_URL": CLOSED})
    assert "PostgreSQL at 127.0.0.1:1/pool cannot be used (nothing listens there): DATABASE_URL" in sentence


def test_a_child_process_names_the_source_that_its_parent_found(run: Path) -> None:
    name_in_file(run, "database_url", CLOSED)
    sentence = penstock(run, "trainer", "verify", "--batch", "0", environment={"NATS_URL": CLOSED_NATS})
    assert sentence.endswith(
        f"services.database_url of {run / 'penstock.toml'} names it; start it, or correct that key"
    )
