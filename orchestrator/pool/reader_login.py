"""A login that may only read, for statements of people.

Where the login of DATABASE_URL is a superuser, as that of the embedded PostgreSQL, a role that its session has taken is one that a
statement can leave: `set_config('role', 'none', true)` inside a SELECT. A session that logged in as a reader has nothing to go back to.
"""

import hmac
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import asyncpg

from orchestrator.clock import clock
from orchestrator.failpoints import boundary

LOGIN = "penstock_sql"
_REFUSED = (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError)
_ADVICE = "give DATABASE_URL a login that is only a reader (ops/guides/security.md)"
QUIET = "log_min_messages=fatal"  # what is wrong with a statement is told to whoever wrote it, not to the server's log
_THERE = "SELECT $2 = ANY (rolconfig) FROM pg_roles WHERE rolname = $1"

# Whether a session of this login could do more than penstock_reader, were it to leave that role.
_MORE = """
SELECT EXISTS (SELECT FROM pg_roles r WHERE pg_has_role(session_user, r.oid, 'MEMBER') AND r.rolname NOT IN (session_user, 'penstock_reader'))
    OR EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
                  AND has_table_privilege(session_user, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'))"""


@dataclass(frozen=True, slots=True)
class ReaderLogin:
    """`url` for statements of people. `leaves`: empty where such a session can do nothing but read; else one sentence that says what
    guards it instead."""

    url: str
    leaves: str = ""


async def reader_login(url: str) -> ReaderLogin:
    """`url` with a login that is a member of penstock_reader and nothing else, made on the server when it is first asked for; its
    password follows from that of `url`. `url` itself where its login is no superuser, has no password, or may make none there.
    OSError, asyncpg.PostgresError or asyncpg.InterfaceError when Postgres cannot be reached."""
    parts = urlsplit(url)
    own = await _connect(url)
    try:
        name, all_powerful = await own.fetchrow(
            "SELECT session_user, rolsuper FROM pg_roles WHERE rolname = session_user"
        )
        if not all_powerful:
            more = await own.fetchval(_MORE)
            return ReaderLogin(url, _leaves(f"login {name} may do more than read") if more else "")
        if not parts.password:
            return ReaderLogin(url, _leaves(f"login {name} is a superuser without a password"))
        password = hmac.new(unquote(parts.password).encode(), LOGIN.encode(), "sha256").hexdigest()
        found = parts._replace(netloc=f"{LOGIN}:{password}@{parts.netloc.rpartition('@')[2]}").geturl()
        if await own.fetchval(_THERE, LOGIN, QUIET):
            try:
                await (await _connect(found)).close()
                return ReaderLogin(found)
            except _REFUSED:
                pass  # made for another password
        try:
            await _make(own, password)
        except asyncpg.PostgresError as error:  # a standby, a service that lets nobody make roles
            return ReaderLogin(url, _leaves(f"the login {LOGIN} cannot be made ({error})"))
        return ReaderLogin(found)
    finally:
        await own.close()


async def _make(owner: asyncpg.Connection, password: str) -> None:
    """In one statement, which commits by itself. The password is hexadecimal: it needs no quoting."""
    statement = f"""DO $$ BEGIN
        PERFORM pg_advisory_xact_lock(7316);
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{LOGIN}') THEN CREATE ROLE {LOGIN}; END IF;
        ALTER ROLE {LOGIN} LOGIN PASSWORD '{password}';
        ALTER ROLE {LOGIN} SET log_min_messages = fatal;
        GRANT penstock_reader TO {LOGIN};
    END $$"""
    await boundary("login.commit", lambda: owner.execute(statement))


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url, timeout=clock().pool_connect_s)


def unknown(url: str, error: Exception) -> ReaderLogin:
    """`url` itself, where Postgres was lost before it could make that login or say what its own may do."""
    return ReaderLogin(url, _leaves(f"whether there is a login {LOGIN} could not be asked ({error})"))


def _leaves(why: str) -> str:
    return f"{why}: this session takes the role penstock_reader, which stops a mistake and not a statement that means to leave it; {_ADVICE}"
