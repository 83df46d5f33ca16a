"""PostgreSQL: what makes a commit durable, room for every connection, limits that would end our statements, the schema."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.cluster.doctor.expected import Expected, connections
from orchestrator.contracts.errors import ServiceError
from orchestrator.embedded.doctor import Check
from orchestrator.embedded.postgres_binaries import OLDEST_MAJOR
from orchestrator.pool.engine import REVISION, check_revision

SHORTEST_STATEMENT_MS = 60_000  # a claim over 100,000 rollouts takes seconds, a migration minutes
DURABLE = {
    "fsync": "a power cut loses or damages what was committed",
    "full_page_writes": "a power cut may leave torn pages",
}
_SETTINGS = text(
    "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'wal_level', "
    "'max_connections', 'superuser_reserved_connections', 'statement_timeout', 'server_version_num', 'server_version')"
)
_LIVING = text(
    "SELECT split_part(process, '-', 1) AS kind, count(*) AS n FROM processes WHERE NOT stopped AND heard > now() - interval '1 day' GROUP BY 1"
)


async def checks(connection: AsyncConnection, expected: Expected) -> list[Check]:
    """All of them."""
    found = {row.name: row.setting for row in await connection.execute(_SETTINGS)}
    alter = "ALTER SYSTEM SET {} = on; SELECT pg_reload_conf()"
    result = [
        Check(
            "PostgreSQL version",
            int(found["server_version_num"]) >= OLDEST_MAJOR * 10_000,
            found["server_version"],
            ""
            if int(found["server_version_num"]) >= OLDEST_MAJOR * 10_000
            else f"upgrade to {OLDEST_MAJOR} or newer",
        )
    ]
    for name, why in DURABLE.items():
        on = found[name] == "on"
        result.append(
            Check(f"PostgreSQL {name}", on, found[name], "" if on else f"{alter.format(name)}: {why}")
        )
    commit = found["synchronous_commit"]
    waits = commit != "off"
    fix = f"{alter.format('synchronous_commit')}: work is acknowledged that a crash would lose"
    result.append(Check("PostgreSQL synchronous_commit", waits, commit, "" if waits else fix))
    level = found["wal_level"] in ("replica", "logical")
    fix = "ALTER SYSTEM SET wal_level = replica, and restart it: there can be no replica and no backup of a moment"
    result.append(Check("PostgreSQL wal_level", level, found["wal_level"], "" if level else fix))
    limit = int(found["statement_timeout"])
    long = not limit or limit >= SHORTEST_STATEMENT_MS
    fix = "ALTER ROLE … RESET statement_timeout for the login of Penstock"
    said = f"{limit} ms" if limit else "none"
    result.append(Check("PostgreSQL statement_timeout", long, said, "" if long else fix))
    revision = await _revision(connection)
    result.append(revision)
    if revision.ok:
        result.append(await _room(connection, found, expected))
    return result


async def _revision(connection: AsyncConnection) -> Check:
    try:
        await check_revision(connection)
    except ServiceError as error:
        problem, _, fix = str(error).rpartition(": ")
        return Check("PostgreSQL revision", False, problem, fix)
    return Check("PostgreSQL revision", True, f"this code ({REVISION}) may run on it")


async def _room(connection: AsyncConnection, found: dict[str, str], expected: Expected) -> Check:
    room = int(found["max_connections"]) - int(found["superuser_reserved_connections"])
    needed, of = expected.connections, "the topology's processes"
    if needed is None:
        needed = connections({row.kind: row.n for row in await connection.execute(_LIVING)})
        of = "the processes that are heard of"
    detail = f"{room} for ordinary logins; {of} may open {needed}"
    fix = f"ALTER SYSTEM SET max_connections = {needed + 20}, and restart it; or put PgBouncer before it, in session mode"
    return Check("PostgreSQL connections", room >= needed, detail, "" if room >= needed else fix)
