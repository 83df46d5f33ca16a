"""A login that may only read, for statements of people.

If the login of DATABASE_URL is a superuser, like that of the embedded PostgreSQL, a statement can leave the role of its session:
`set_config('role', 'none', true)` inside a SELECT. A session that logged in as a reader has no other role to return to.
"""

import hmac
from dataclasses import dataclass

import asyncpg

from orchestrator.pool.address import address_of
from orchestrator.runtime.failpoints import boundary
from orchestrator.settings.timeouts import timeouts

LOGIN = "penstock_sql"
_REFUSED = (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError)
_ADVICE = "give DATABASE_URL a login that is only a reader (ops/guides/security.md)"
QUIET = "log_min_messages=fatal"  # errors in a statement go to its author, not to the server's log
_THERE = "SELECT $2 = ANY (rolconfig) FROM pg_roles WHERE rolname = $1"

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
    """`url` with a login that is a member of penstock_reader and nothing else. The login is created on the server at first use; its
    password is derived from that of `url`. Returns `url` itself if its login is not a superuser, has no password, or may not create logins.
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
        if await own.fetchval(_THERE, LOGIN, QUIET):
            try:
                await (await _connect(found)).close()
                return ReaderLogin(found)
            except _REFUSED:
                pass  # created for another password
        try:
            await _make(own, password)
        except asyncpg.PostgresError as error:  # a standby, or a service that does not allow new roles
            return ReaderLogin(url, _leaves(f"the login {LOGIN} cannot be made ({error})"))
        return ReaderLogin(found)
    finally:
        await own.close()


async def _make(owner: asyncpg.Connection, password: str) -> None:
    """Create the login in one statement, which commits by itself. The password is hexadecimal: it needs no quoting."""
    statement = f"""DO $$ BEGIN
        PERFORM pg_advisory_xact_lock(7316);
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{LOGIN}') THEN CREATE ROLE {LOGIN}; END IF;
        ALTER ROLE {LOGIN} LOGIN PASSWORD '{password}';
        ALTER ROLE {LOGIN} SET log_min_messages = fatal;
        GRANT penstock_reader TO {LOGIN};
    END $$"""
    await boundary("login.commit", lambda: owner.execute(statement))


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(**address_of(url).arguments(timeout_s=timeouts().pool_connect_s))


def unknown(url: str, error: Exception) -> ReaderLogin:
    """`url` itself, if Postgres was lost before it could create the login or report the rights of its own login."""
    return ReaderLogin(url, _leaves(f"whether the login {LOGIN} exists could not be checked ({error})"))


def _leaves(why: str) -> str:
    return f"{why}: this session takes the role penstock_reader, which stops a mistake and not a statement that means to leave it; {_ADVICE}"
