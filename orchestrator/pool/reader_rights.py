"""The rights of logins that only read: what PUBLIC may do in the database beyond reading, and how long a reader's transaction may last.

PostgreSQL lets every login make temporary tables and large objects, and take advisory locks. `tighten` takes that from PUBLIC in this database, as
far as the login may: temporary tables as the database's owner, functions of the server only as a superuser. A reader can undo every setting of its
own session, so its time is bounded from outside (`end_long`). The product itself waits only for locks that take a right to write.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.pool.locks import MODE
from orchestrator.pool.transact import when_committed
from orchestrator.runtime.log import get

log = get(__name__)

# Functions of the server that write, or hold what others may wait for. All are EXECUTE for PUBLIC in a new database.
_FUNCTIONS = r"""(p.proname LIKE 'lo\_%' OR p.proname IN ('loread', 'lowrite', 'pg_logical_emit_message')
    OR p.proname LIKE 'pg\_advisory%lock%' OR p.proname LIKE 'pg\_try\_advisory%')"""
_OPEN = rf"""FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND {_FUNCTIONS}
    AND has_function_privilege('penstock_reader', p.oid, 'EXECUTE')"""

MORE: Final = rf"""
SELECT array_remove(ARRAY[
    CASE WHEN has_database_privilege('penstock_reader', current_database(), 'TEMPORARY') THEN 'make temporary tables' END,
    CASE WHEN has_schema_privilege('penstock_reader', 'public', 'CREATE') THEN 'make tables' END,
    CASE WHEN EXISTS (SELECT {_OPEN} AND p.proname ~ 'advisory') THEN 'hold advisory locks' END,
    CASE WHEN EXISTS (SELECT {_OPEN} AND p.proname ~ '^lo') THEN 'make large objects' END,
    CASE WHEN EXISTS (SELECT {_OPEN} AND p.proname ~ 'logical') THEN 'write to the write-ahead log' END], NULL)"""
"""Rights of a reader of this database beyond reading, as text[]; empty: none."""

# Gateways of before this file take an advisory lock when they claim a server.
TIGHTEN: Final = rf"""DO $$
DECLARE found regprocedure;
BEGIN
    BEGIN
        LOCK TABLE compatibility IN {MODE} MODE;
    EXCEPTION WHEN insufficient_privilege THEN RETURN;  -- the tables are another login's: so is the database
    END;
    BEGIN
        EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
    EXCEPTION WHEN insufficient_privilege THEN NULL;
    END;
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN RETURN; END IF;
    REVOKE CREATE ON SCHEMA public FROM PUBLIC;
    FOR found IN SELECT p.oid::regprocedure {_OPEN} LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', found);
    END LOOP;
    GRANT EXECUTE ON FUNCTION pg_advisory_xact_lock(bigint) TO penstock_gateway;
END $$"""
"""Takes these rights from PUBLIC. Repeatable."""

# A login that may read and nothing else: no superuser, no owner, no member of another role of ours.
_READERS = """
    SELECT a.pid, a.usename, coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8 AS seconds
      FROM pg_stat_activity a JOIN pg_roles r ON r.rolname = a.usename
     WHERE a.datname = current_database() AND NOT r.rolsuper AND pg_has_role(r.oid, 'penstock_reader', 'MEMBER')
       AND NOT EXISTS (SELECT FROM pg_roles other WHERE other.rolname IN ('penstock_gateway', 'penstock_runner', 'penstock_trainer')
                          AND pg_has_role(r.oid, other.oid, 'MEMBER'))"""
_MAY_END = "(SELECT rolsuper OR pg_has_role('pg_signal_backend', 'MEMBER') FROM pg_roles WHERE rolname = current_user)"
_END_LONG = f"""
WITH readers AS MATERIALIZED ({_READERS})
SELECT pid, usename, seconds, pg_terminate_backend(pid) FROM readers
 WHERE seconds > :longest AND {_MAY_END}"""
_END_IN_THE_WAY = f"""
WITH readers AS MATERIALIZED ({_READERS})
SELECT pid, usename, seconds, pg_terminate_backend(pid) FROM readers
 WHERE pid = ANY (pg_blocking_pids(:waiting)) AND {_MAY_END}"""


async def tighten(connection: AsyncConnection) -> list[str]:
    """Take from readers what they need not have. Returns what they may still do beyond reading, because this login may not take it from them."""
    if not (more := await readers_may(connection)):
        return []
    await connection.execute(text(TIGHTEN))
    left = await readers_may(connection)
    taken = [each for each in more if each not in left]
    if taken:
        when_committed(lambda: log.info("database.tightened", readers_no_longer=taken))
    return left


async def readers_may(connection: AsyncConnection) -> list[str]:
    """The rights of a reader of this database beyond reading."""
    return list(await connection.scalar(text(MORE)) or [])


async def end_long(connection: AsyncConnection, longest_s: float) -> int:
    """End the sessions of readers whose transaction is older than `longest_s` seconds; how many. Nothing if this login may not."""
    return _logged((await connection.execute(text(_END_LONG), {"longest": longest_s})).all())


async def end_in_the_way(connection: AsyncConnection, waiting: int) -> int:
    """End the sessions of readers for whose locks the server process `waiting` waits; how many. Nothing if this login may not."""
    return _logged((await connection.execute(text(_END_IN_THE_WAY), {"waiting": waiting})).all())


def _logged(ended: Sequence[Row[Any]]) -> int:
    for row in ended:
        log.warning("reader.ended", login=row.usename, pid=row.pid, seconds=round(row.seconds, 1))
    return len(ended)
