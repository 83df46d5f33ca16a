"""URLs of PostgreSQL with libpq's options, at a real server: in engines, migrations and the login of `penstock sql`."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, urlsplit

import anyio
import pytest
from sqlalchemy import text

from orchestrator.cli.sql import query
from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded.configured import ask_postgres
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.pool.engine import Role, bare_engine, open_engine

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]
REPOSITORY = Path(__file__).resolve().parents[3]


def forms(url: str, sockets: Path, passfile: Path) -> dict[str, str]:
    """The same database in the forms that people use."""
    parts = urlsplit(url)
    passfile.write_text(f"*:*:*:*:{parts.password}\n")
    passfile.chmod(0o600)
    login, _, place = parts.netloc.rpartition("@")
    at = f"{place}{parts.path}"
    return {
        "as it comes": url,
        "psycopg": f"postgresql+psycopg://{login}@{at}?sslmode=disable",
        "connect_timeout": f"{url}&connect_timeout=10&keepalives_idle=30&tcp_user_timeout=20000",
        "options": f"{url}&options=-c%20statement_timeout%3D61000",
        "channel_binding": f"{url}&channel_binding=prefer&gssencmode=disable",
        "prefer": f"postgresql://{login}@{at}?sslmode=prefer",
        "two hosts": f"postgresql://{login}@127.0.0.1:1,{at}?target_session_attrs=read-write",
        "socket": f"postgresql://{login}@{parts.path}?host={quote(str(sockets), safe='')}&port={parts.port}",
        "socket as a host": f"postgresql://{login}@{quote(str(sockets), safe='')}:{parts.port}{parts.path}",
        "passfile": f"postgresql://{parts.username}@{at}?passfile={passfile}",
        "all behind the question mark": f"postgresql://?host={parts.hostname}&port={parts.port}&user={parts.username}"
        f"&password={parts.password}&dbname={parts.path[1:]}",
        "without caches": f"{url}&prepared_statement_cache_size=0",
    }


async def test_a_url_with_options_connects_wherever_one_is_taken(
    database_url: str, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    for name, url in forms(database_url, postgres_server.cluster.sockets, tmp_path / "pass").items():
        for role in (Role.OWNER, Role.TRAINER, Role.READER):
            with anyio.fail_after(60):
                async with (
                    open_engine(url, role, size=1, name="mine") as engine,
                    engine.connect() as connection,
                ):
                    [settings] = await connection.execute(
                        text(
                            "SELECT current_setting('application_name'), current_setting('statement_timeout')"
                        )
                    )
            assert settings == ("mine", "61s" if name == "options" else "0"), name
        engine = bare_engine(url)
        async with engine.connect() as connection:
            assert (
                await connection.scalar(text("SELECT current_database()")) == urlsplit(database_url).path[1:]
            )
        await engine.dispose()
        answer = await query(url, "SELECT session_user, 7 AS seven")
        assert answer.rows == [("penstock" if name == "passfile" else "penstock_sql", 7)], name


async def test_the_name_of_the_url_is_the_sessions(database_url: str) -> None:
    async with (
        open_engine(f"{database_url}&application_name=of%20mine", size=1) as engine,
        engine.connect() as connection,
    ):
        assert await connection.scalar(text("SELECT current_setting('application_name')")) == "of mine"


@pytest.mark.parametrize("command", ["current", "upgrade head"])
def test_alembic_takes_the_same_urls_and_says_what_is_wrong_in_one_sentence(
    command: str, database_url: str
) -> None:
    def alembic(url: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "alembic", "-c", str(REPOSITORY / "alembic.ini"), *command.split()]
        environment = {**os.environ, "DATABASE_URL": url}
        return subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=60, cwd=REPOSITORY
        )

    taken = alembic(f"{database_url}&application_name=x&connect_timeout=10")
    assert taken.returncode == 0, taken.stderr
    parts = urlsplit(database_url)
    for url, sentence in {
        "": "set DATABASE_URL",
        "postgresql://u:secret@127.0.0.1:1/d": "127.0.0.1:1/d cannot be used",
        "mysql://u:secret@h/d": "not a PostgreSQL URL",
        f"{database_url}&channel_binding=require": "channel_binding=require",
        f"postgresql://penstock:secret@{parts.hostname}:{parts.port}/none?sslmode=disable": "password authentication failed",
    }.items():
        refused = alembic(url)
        assert refused.returncode != 0 and sentence in refused.stdout + refused.stderr
        assert (
            "Traceback" not in refused.stdout + refused.stderr
            and "secret" not in refused.stdout + refused.stderr
        )


def test_a_percent_of_an_ini_file_is_doubled_and_a_single_one_is_one_sentence(
    database_url: str, tmp_path: Path
) -> None:
    def alembic(url: str) -> "subprocess.CompletedProcess[str]":
        file = tmp_path / "a.ini"
        file.write_text(f"[alembic]\nscript_location = {REPOSITORY / 'migrations'}\nsqlalchemy.url = {url}\n")
        argv = [sys.executable, "-m", "alembic", "-c", str(file), "current"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=REPOSITORY)

    taken = alembic(f"{database_url}&application_name=a%%20b")
    assert taken.returncode == 0, taken.stderr
    refused = alembic("postgresql://u:secret%40w@127.0.0.1:1/db")
    printed = refused.stdout + refused.stderr
    assert refused.returncode != 0 and "a.ini has a single %: write each % as %% there" in printed
    assert "Traceback" not in printed and "secret" not in printed and "40w" not in printed


async def test_a_server_that_does_not_fit_the_url_is_one_sentence_for_statements_too(
    database_url: str,
) -> None:
    for more in ("target_session_attrs=standby", "sslmode=require", "options=-c%20nonsense%3D1"):
        with pytest.raises(ServiceError, match=r"cannot be used|refuses the options") as refused:
            await query(f"{database_url}&{more}", "SELECT 1")
        assert "\n" not in str(refused.value)


async def test_doctor_does_not_call_a_database_good_that_takes_no_writes(database_url: str) -> None:
    assert "takes every role" in await ask_postgres(database_url)
    with pytest.raises(ServiceError, match=r"refuses writes.*default_transaction_read_only"):
        await ask_postgres(f"{database_url}&options=-c%20default_transaction_read_only%3Don")


async def test_options_that_hide_the_schema_or_are_not_known_are_one_sentence_that_names_them(
    database_url: str,
) -> None:
    with pytest.raises(ServiceError, match="take search_path out of the URL's options"):
        await ask_postgres(f"{database_url}&options=-c%20search_path%3Dfoo")
    with pytest.raises(
        ServiceError, match=r"refuses the options of the URL \(.*nonsense.*\): correct or remove options="
    ):
        await ask_postgres(f"{database_url}&options=-c%20nonsense%3Dfoo")
