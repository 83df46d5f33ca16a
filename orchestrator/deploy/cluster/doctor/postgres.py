"""PostgreSQL: durability of commits, enough connections, limits that would end our statements, the schema."""

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.cluster.doctor.expected import Expected, connections
from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.deploy.embedded.postgres_binaries import OLDEST_MAJOR
from orchestrator.pool.engine import REVISION, check_revision
from orchestrator.pool.reader_rights import readers_may
from orchestrator.queries.installation import living_processes
from orchestrator.queries.postgres_server import server_settings

MIN_STATEMENT_MS = 60_000  # a claim over 100,000 rollouts takes seconds, a migration minutes
DURABLE = {
    "fsync": "a power cut loses or damages what was committed",
    "full_page_writes": "a power cut may leave torn pages",
}


async def checks(connection: AsyncConnection, expected: Expected) -> list[DoctorCheck]:
    """All checks."""
    found = await server_settings(connection)
    alter = "ALTER SYSTEM SET {} = on; SELECT pg_reload_conf()"
    result = [
        DoctorCheck(
            name="PostgreSQL version",
            ok=int(found["server_version_num"]) >= OLDEST_MAJOR * 10_000,
            detail=found["server_version"],
            fix=""
            if int(found["server_version_num"]) >= OLDEST_MAJOR * 10_000
            else f"upgrade to {OLDEST_MAJOR} or newer",
        )
    ]
    for name, reason in DURABLE.items():
        on = found[name] == "on"
        result.append(
            DoctorCheck(
                name=f"PostgreSQL {name}",
                ok=on,
                detail=found[name],
                fix="" if on else f"{alter.format(name)}: {reason}",
            )
        )
    commit = found["synchronous_commit"]
    waits = commit != "off"
    fix = f"{alter.format('synchronous_commit')}: work is acknowledged that a crash would lose"
    result.append(
        DoctorCheck(name="PostgreSQL synchronous_commit", ok=waits, detail=commit, fix="" if waits else fix)
    )
    level = found["wal_level"] in ("replica", "logical")
    fix = "ALTER SYSTEM SET wal_level = replica, and restart it: there can be no replica and no backup of a moment"
    result.append(
        DoctorCheck(
            name="PostgreSQL wal_level", ok=level, detail=found["wal_level"], fix="" if level else fix
        )
    )
    limit = int(found["statement_timeout"])
    long = not limit or limit >= MIN_STATEMENT_MS
    fix = "ALTER ROLE … RESET statement_timeout for the login of Penstock"
    detail = f"{limit} ms" if limit else "none"
    result.append(
        DoctorCheck(name="PostgreSQL statement_timeout", ok=long, detail=detail, fix="" if long else fix)
    )
    revision = await _revision(connection)
    result.append(revision)
    if revision.ok:
        result.append(await _room(connection, found, expected))
        result.append(await _readers(connection))
    return result


async def _readers(connection: AsyncConnection) -> DoctorCheck:
    """Not an error: a login that is not a superuser cannot take it from them."""
    may = await readers_may(connection)
    detail = f"may also {', '.join(may)}; the start of a run takes that from them where its login may (ops/guides/security.md)"
    return DoctorCheck(name="PostgreSQL readers", ok=True, detail=detail if may else "may only read")


async def _revision(connection: AsyncConnection) -> DoctorCheck:
    try:
        await check_revision(connection)
    except ServiceError as error:
        problem, _, fix = str(error).rpartition(": ")
        return DoctorCheck(name="PostgreSQL revision", ok=False, detail=problem, fix=fix)
    return DoctorCheck(name="PostgreSQL revision", ok=True, detail=f"this code ({REVISION}) may run on it")


async def _room(connection: AsyncConnection, found: dict[str, str], expected: Expected) -> DoctorCheck:
    available = int(found["max_connections"]) - int(found["superuser_reserved_connections"])
    needed, openers = expected.connections, "the topology's processes"
    if needed is None:
        needed = connections(await living_processes(connection))
        openers = "the processes that report"
    detail = f"{available} for ordinary logins; {openers} may open {needed}"
    fix = f"ALTER SYSTEM SET max_connections = {needed + 20}, and restart it; or put PgBouncer before it, in session mode"
    return DoctorCheck(
        name="PostgreSQL connections",
        ok=available >= needed,
        detail=detail,
        fix="" if available >= needed else fix,
    )
