"""Connections to the data pool: asyncpg under SQLAlchemy, one engine per process, a role per kind of process."""

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.address import Address, address_of
from orchestrator.pool.rights import Role as Role  # the rest of the product opens engines by it
from orchestrator.pool.rights import check_encoding, check_schema
from orchestrator.pool.transact import broken_client, passing
from orchestrator.runtime.unreachable import cause_of
from orchestrator.settings.timeouts import timeouts

CLOSE_S = 5.0
POLL_INTERVAL_S = 0.5
_PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED_MIGRATIONS = _PACKAGE / "_migrations"  # their place in a wheel (pyproject.toml)
MIGRATIONS = INSTALLED_MIGRATIONS if INSTALLED_MIGRATIONS.is_dir() else _PACKAGE.parent / "migrations"
REVISION = "0113"
"""The newest migration. A constant, because every process checks it, and importing Alembic takes as long as all other imports together."""
FIRST = "0108"
"""The migration that fills an empty database. Lower numbers belong to removed migrations."""
OLDEST_CODE = "0100"
"""The revision of the oldest code that may use the schema of `FIRST`, until a later migration contracts."""
LOGIN_REFUSED, NO_DATABASE = "28", "3D000"  # a class of SQLSTATE, and one
DRIVER = "postgresql+asyncpg://"  # the driver gets the server's address by arguments (address.py)


def bare_engine(url: str, **options: Any) -> AsyncEngine:
    """An engine for `url` with the options of the URL and none of our settings: for migrations. ServiceError for an option that cannot be
    honoured."""
    return create_async_engine(DRIVER, connect_args=_arguments(address_of(url), {}), **options)


def _arguments(address: Address, settings: Mapping[str, str]) -> dict[str, Any]:
    found = address.arguments(timeout_s=timeouts().pool_connect_s, server_settings=settings)
    if (cached := found.get("statement_cache_size")) is not None:
        found["prepared_statement_cache_size"] = cached  # SQLAlchemy has its own cache
    return found


@asynccontextmanager
async def open_engine(
    url: str,
    role: Role = Role.OWNER,
    *,
    size: int = 8,
    name: str = "penstock",
    patience_s: float = 0.0,
) -> AsyncIterator[AsyncEngine]:
    """An engine whose sessions have taken `role`. Raises ServiceError if the server cannot be reached within `patience_s` seconds, or
    refuses."""
    settings = {
        "application_name": name,
        "tcp_keepalives_idle": str(_keep_alive()[0]),
        "tcp_keepalives_interval": str(_keep_alive()[1]),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(int(timeouts().pool_silence_s * 1000)),
    }
    if role is not Role.OWNER:
        settings["role"] = role.value
    if role is Role.READER:
        settings["default_transaction_read_only"] = "on"
    else:
        settings["idle_in_transaction_session_timeout"] = str(int(timeouts().pool_idle_s * 1000))
    address = address_of(url)
    arguments = _arguments(address, settings)
    if role is Role.READER and arguments.get("target_session_attrs") == "read-write":
        arguments["target_session_attrs"] = "primary"  # a reader's own session does not write, on any server
    engine = create_async_engine(
        DRIVER,
        pool_size=size,
        max_overflow=size,
        pool_pre_ping=True,
        connect_args=arguments,
    )
    event.listen(
        engine.sync_engine,
        "connect",
        lambda dbapi_connection, _record: _break_when_silent(dbapi_connection, address),
    )
    try:
        await _answers(engine, address, role, patience_s)
    except BaseException:
        await engine.dispose()
        raise
    try:
        yield engine
    finally:
        # Also when cancelled: a half-closed connection would stay open at the server.
        with anyio.move_on_after(CLOSE_S, shield=True):
            await engine.dispose()


async def _answers(engine: AsyncEngine, address: Address, role: Role, patience_s: float) -> None:
    """Return once Postgres has answered. Raises ServiceError, one sentence, if it does not answer or refuses."""
    deadline = anyio.current_time() + patience_s
    while True:
        try:
            async with engine.connect() as connection:
                await connection.execute(text("select 1"))
            return
        except CANNOT_CONNECT as error:
            if not passing(error) or anyio.current_time() >= deadline:
                raise refusal(error, address, role) from error
        await anyio.sleep(POLL_INTERVAL_S)


CANNOT_CONNECT = (
    OSError,
    DBAPIError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ValueError,
)
"""The errors of a connection attempt, for any cause: the network, the login, the server or the URL."""


def refusal(error: BaseException, address: Address, role: Role = Role.OWNER) -> ServiceError:
    """One sentence for a connection that Postgres, or the network, refused."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    message = _first_line(cause)
    if broken_client(error):
        return ServiceError(
            f"the connection to PostgreSQL at {address.place} broke while it was opened ({message}): try again"
        )
    if role is not Role.OWNER and role.value in message:
        if "does not exist" in message:
            return ServiceError(
                f"PostgreSQL at {address.place} has no role {role.value}: run `alembic upgrade head` (ops/guides/database.md)"
            )
        login = address.user or "LOGIN"
        return ServiceError(
            f"the login {login} may not take the role {role.value} at {address.place} ({message}): as a superuser, or who may grant it, run "
            f'`GRANT {role.value} TO "{login}"` (ops/guides/database.md)'
        )
    if "options" in address.options and (
        "configuration parameter" in message or "command-line argument" in message
    ):
        return ServiceError(
            f"PostgreSQL at {address.place} refuses the options of the URL ({message}): correct or remove options= in DATABASE_URL"
        )
    away = cause_of(cause) if cause is not None else None
    refused = _refused(cause, address)
    why = refused or away or message or "it does not answer"
    advice = (
        "start it (`penstock up -c RUN` does, where it is embedded) or check services.database_url and DATABASE_URL"
        if address.origin is None
        else address.origin.advice(away=refused is None and away is not None)
    )
    return ServiceError(f"PostgreSQL at {address.place} cannot be used ({why}): {advice}")


def _refused(error: BaseException | None, address: Address) -> str | None:
    """Why a server that answers cannot be used, where its own sentence is not enough."""
    state = str(getattr(error, "sqlstate", None) or "")
    if state[:2] == LOGIN_REFUSED:
        return f"it refuses the login {address.user or 'of this user'}: {_first_line(error)}"
    if state == NO_DATABASE:
        return f"it has no database {address.database or address.user}"
    if "rejected SSL upgrade" in str(error):
        mode = address.options.get("sslmode", "prefer")
        return (
            "its answer is not PostgreSQL's"
            if mode in ("allow", "prefer")
            else f"it does not speak TLS, which sslmode={mode} asks for"
        )
    return None


def _first_line(error: object) -> str:
    """The server's own sentence, without the driver's name for it."""
    return str(error).rpartition("'>: ")[2].partition("\n")[0]


def _keep_alive() -> tuple[int, int]:
    """(seconds of silence before the first probe, seconds between two probes), so that the third is missed after `timeouts.pool_silence_s`.

    A network partition must not block without end, nor hold locks. A server that is only stopped or busy still answers probes.
    """
    interval_s = max(1, round(timeouts().pool_silence_s / 5))
    return max(1, round(timeouts().pool_silence_s) - 3 * interval_s), interval_s


def _break_when_silent(connection: Any, address: Address) -> None:
    """Our side of `timeouts.pool_silence_s`, unless the URL sets it; a Unix socket needs none."""
    transport = connection.driver_connection._transport  # asyncpg has no option for it
    found = transport.get_extra_info("socket")
    if found is None or found.family == socket.AF_UNIX:
        return
    idle_s, interval_s = _keep_alive()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(address.number("keepalives") != 0))
    for option, named, default in (
        (socket.TCP_KEEPIDLE, "keepalives_idle", idle_s),
        (socket.TCP_KEEPINTVL, "keepalives_interval", interval_s),
        (socket.TCP_KEEPCNT, "keepalives_count", 3),
        (socket.TCP_USER_TIMEOUT, "tcp_user_timeout", int(timeouts().pool_silence_s * 1000)),
    ):
        found.setsockopt(socket.IPPROTO_TCP, option, address.number(named) or default)


class OldCode(ServiceError):
    """The database has contracted since this code: only newer code can use it."""


class OldDatabase(ServiceError):
    """The database is older than `FIRST`: no code with this file can use or migrate it."""


NO_WAITING_HELPS = (OldCode, OldDatabase)
ENCODING = "SELECT current_database(), current_setting('server_encoding')"


def check_migratable(found: str | None) -> None:
    """Raise OldDatabase if no migration leads from `found`, a database's revision, to this code's."""
    if found is not None and found < FIRST:
        raise OldDatabase(
            f"the database is at revision {found}, and this version of Penstock migrates from {FIRST} on: first upgrade it to {FIRST} with "
            "the release before this one, or use a new database, or with `penstock up` a new directory (ops/guides/upgrade.md)"
        )


async def check_revision(connection: AsyncConnection) -> None:
    """Raise ServiceError unless this code may run on the database: its encoding is UTF8, and it is at this code's revision, or at a newer
    revision whose `compatibility` row still allows this code. OldCode if the row does not allow it, OldDatabase if the database is older
    than `FIRST`."""
    check_encoding(*(await connection.execute(text(ENCODING))).one())
    found = await revision_of(connection)
    check_migratable(found)
    if found is None:
        login, schema = (await connection.execute(text("SELECT session_user, current_schema()"))).one()
        check_schema(login, schema)
    if found is None or found < REVISION:
        raise ServiceError(
            f"the database is at revision {found or 'none'}, this version of Penstock needs {REVISION}: run `alembic upgrade head`"
        )
    if found > REVISION:
        oldest = await _oldest_code(connection)
        if oldest is None or oldest > REVISION:
            raise OldCode(
                f"the database is at revision {found}, on which code older than {oldest or found} cannot run; this is {REVISION}: "
                "start the version of Penstock that the database was upgraded for"
            )


async def revision_of(connection: AsyncConnection) -> str | None:
    """The newest migration that was run, None if none was. Four digits, so that revisions compare as text."""
    exists = await connection.scalar(text("select to_regclass('alembic_version')"))
    found: str | None = (
        await connection.scalar(text("select version_num from alembic_version")) if exists else None
    )
    return found


async def _oldest_code(connection: AsyncConnection) -> str | None:
    """The revision of the oldest code that may run on a database that is newer than this code."""
    exists = await connection.scalar(text("select to_regclass('compatibility')"))
    found: str | None = (
        await connection.scalar(text("select oldest_code from compatibility")) if exists else None
    )
    return found


async def limit_statements(connection: AsyncConnection, seconds: float) -> None:
    """Cancel each statement of the current transaction that takes longer than `seconds`."""
    await connection.execute(text(f"SET LOCAL statement_timeout = {round(seconds * 1000)}"))
