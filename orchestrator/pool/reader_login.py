"""A login that may only read, for statements of people.

If the login of DATABASE_URL is a superuser, like that of the embedded PostgreSQL, a statement can leave the role of its session:
`set_config('role', 'none', true)` inside a SELECT. A session that logged in as a reader has no other role to return to.
"""

import hmac
from dataclasses import dataclass

import asyncpg

from orchestrator.pool.address import address_of
from orchestrator.pool.locks import MODE
from orchestrator.pool.reader_rights import MORE, TIGHTEN
from orchestrator.runtime.failpoints import boundary
from orchestrator.settings.timeouts import timeouts

LOGIN = "penstock_sql"
_REFUSED = (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError)
_ADVICE = "give DATABASE_URL a login that is only a reader (ops/guides/security.md)"
CONNECTIONS = 8
SETTINGS = (
    "idle_in_transaction_session_timeout=1min",
    "idle_session_timeout=10min",
    "lock_timeout=10s",
    "statement_timeout=5min",  # `penstock sql` sets its own
    # These two only a superuser can change: errors in a statement go to its author, not to the server's log; a sort does not fill the disk.
    "log_min_messages=fatal",
    "temp_file_limit=4GB",
)
"""The settings with which a session of the login begins. It can change all but the last two; `reader_rights.end_long` bounds its time
nevertheless."""

# Whether the login is as it was made. A login may change its own password and its own settings.
_THERE = """
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1 AND rolcanlogin AND rolconnlimit = $2) AND found <@ $3::text[] AND found @> $3::text[]
  FROM (SELECT coalesce(array_agg(each), '{}') AS found
          FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole CROSS JOIN unnest(s.setconfig) each WHERE r.rolname = $1) settings"""

# Whether a session of this login could do more than penstock_reader if it left that role.
_MORE = """
SELECT EXISTS (SELECT FROM pg_roles r WHERE pg_has_role(session_user, r.oid, 'MEMBER') AND r.rolname NOT IN (session_user, 'penstock_reader'))
    OR EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
                  AND has_table_privilege(session_user, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'))"""


@dataclass(frozen=True, slots=True)
class ReaderLogin:
    """`url` for statements of people. `leaves`: None if such a session can only read; otherwise one sentence about what
    guards it instead."""

    url: str
    leaves: str | None = None


async def reader_login(url: str) -> ReaderLogin:
    """`url` with a login that is a member of penstock_reader and nothing else. The login is created on the server at first use, and reset
    if it has another password or other settings; its password is derived from that of `url`. Returns `url` itself if its login is not
    a superuser, has no password, or may not create logins.
    OSError, asyncpg.PostgresError or asyncpg.InterfaceError if Postgres cannot be reached."""
    address = address_of(url)
    own = await _connect(url)
    try:
        name, is_superuser = await own.fetchrow(
            "SELECT session_user, rolsuper FROM pg_roles WHERE rolname = session_user"
        )
        if not is_superuser:
            more = await own.fetchval(_MORE)
            return ReaderLogin(url, _leaves(f"login {name} may do more than read") if more else None)
        if not address.password:
            return ReaderLogin(url, _leaves(f"login {name} is a superuser without a password"))
        password = hmac.new(address.password.encode(), LOGIN.encode(), "sha256").hexdigest()
        found = address.of(LOGIN, password)
        async with own.transaction(readonly=True):
            there = await own.fetchval(_THERE, LOGIN, CONNECTIONS, SETTINGS)
            as_it_was = there and not await own.fetchval(MORE)
        if as_it_was:
            try:
                await (await _connect(found)).close()
                return ReaderLogin(found)
            except _REFUSED:
                pass  # created for another password, or it was changed
        try:
            await _make(own, password)
        except asyncpg.PostgresError as error:  # a standby, or a service that does not allow new roles
            return ReaderLogin(url, _leaves(f"the login {LOGIN} cannot be made ({error})"))
        return ReaderLogin(found)
    finally:
        await own.close()


async def keep_login(url: str) -> None:
    """If the login exists, reset it: a password that a reader has set is no longer valid. For the start of a run. Raises as
    `reader_login`."""
    own = await _connect(url)
    try:
        there = await own.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", LOGIN)
    finally:
        await own.close()
    if there:
        await reader_login(url)


async def _make(owner: asyncpg.Connection, password: str) -> None:
    """Create the login, or reset it, in one statement, which commits by itself. The password is hexadecimal: it needs no quoting.
    The lock is one that only a superuser can take, and holds for the whole server as roles do."""
    settings = "\n".join(
        f"ALTER ROLE {LOGIN} SET {name} = '{value}';"
        for name, _, value in (each.partition("=") for each in SETTINGS)
    )
    statement = f"""DO $make$
    DECLARE place text;
    BEGIN
        LOCK TABLE pg_authid IN {MODE} MODE;
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{LOGIN}') THEN CREATE ROLE {LOGIN}; END IF;
        ALTER ROLE {LOGIN} LOGIN PASSWORD '{password}' CONNECTION LIMIT {CONNECTIONS};
        FOR place IN SELECT d.datname FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
                       JOIN pg_roles r ON r.oid = s.setrole WHERE r.rolname = '{LOGIN}' LOOP
            EXECUTE format('ALTER ROLE {LOGIN} IN DATABASE %I RESET ALL', place);
        END LOOP;
        ALTER ROLE {LOGIN} RESET ALL;
        {settings}
        GRANT penstock_reader TO {LOGIN};
    END $make$; {TIGHTEN}"""
    await boundary("login.commit", lambda: owner.execute(statement))


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(**address_of(url).arguments(timeout_s=timeouts().pool_connect_s))


def unknown(url: str, error: Exception) -> ReaderLogin:
    """`url` itself, if Postgres was lost before it could create the login or report the rights of its own login."""
    return ReaderLogin(url, _leaves(f"whether the login {LOGIN} exists could not be checked ({error})"))


def _leaves(why: str) -> str:
    return f"{why}: this session takes the role penstock_reader, which stops a mistake and not a statement that means to leave it; {_ADVICE}"
