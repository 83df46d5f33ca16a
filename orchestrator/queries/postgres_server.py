"""A PostgreSQL server as it describes itself: version, settings, clock and login. It works on a server without a data pool."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.pool.rows import from_row

_SERVER = text(
    "SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS version_number,"
    " current_setting('transaction_read_only') = 'on' AS read_only, session_user AS login"
)
_SETTINGS = text(
    "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'wal_level', "
    "'max_connections', 'superuser_reserved_connections', 'statement_timeout', 'server_version_num', 'server_version')"
)
_CLOCK = text("SELECT extract(epoch FROM clock_timestamp())::float8")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A server, and our session on it. `version_number`: 10,000 for each major version; `read_only`: it refuses writes; `login`: before any
    role is taken."""

    version: str
    version_number: int
    read_only: bool
    login: str


async def postgres_server(connection: AsyncConnection) -> PostgresServer:
    """The server of a connection."""
    return from_row(PostgresServer, (await connection.execute(_SERVER)).one())


async def server_settings(connection: AsyncConnection) -> dict[str, str]:
    """The settings that durability and the number of connections depend on, each in its unit of `pg_settings`."""
    return {row.name: row.setting for row in await connection.execute(_SETTINGS)}


async def server_clock(connection: AsyncConnection) -> float:
    """The server's clock, in seconds since 1970."""
    found = await connection.scalar(_CLOCK)
    assert found is not None
    return float(found)
