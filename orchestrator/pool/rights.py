"""The rights of the migrations' login: create the roles and take them. If it lacks them, one sentence with the SQL that grants them.

A personal login at a managed PostgreSQL is often neither superuser nor CREATEROLE. Then an administrator runs that SQL once.
"""

from enum import StrEnum

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from orchestrator.contracts.errors import ServiceError


class Role(StrEnum):
    """Database roles created by the migrations. A process connects with its login and then takes one of these roles."""

    OWNER = ""  # the login itself: orchestrator and migrations
    READER = "penstock_reader"
    GATEWAY = "penstock_gateway"
    RUNNER = "penstock_runner"
    TRAINER = "penstock_trainer"


ROLES = tuple(role for role in Role if role is not Role.OWNER)
_REFUSED = "42501"  # SQLSTATE insufficient_privilege
_HERE = """
SELECT current_user, current_database(), coalesce(current_schema(), ''), has_schema_privilege('public', 'CREATE')
    AND has_schema_privilege('public', 'USAGE') AND has_database_privilege(current_database(), 'CREATE')"""
_MAY_MAKE = "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
GUIDE = "ops/guides/database.md"


def grants(login: str) -> str:
    """The statement that lets a login take every role."""
    return f'GRANT {", ".join(ROLES)} TO "{login}"'


def statements(login: str) -> str:
    """The SQL that an administrator runs once on a server, for an ordinary login."""
    return "; ".join([*(f"CREATE ROLE {role} NOLOGIN" for role in ROLES), grants(login)])


def no_place(login: str, database: str) -> str:
    """The sentence for a login that may not create tables."""
    granted = f'GRANT USAGE, CREATE ON SCHEMA public TO "{login}"; GRANT CREATE ON DATABASE "{database}" TO "{login}"'
    return (
        f"the login {login} may make no tables in the schema public of {database}: as the owner of that database run `{granted}`, "
        f"then `alembic upgrade head` again ({GUIDE})"
    )


def check_schema(login: str, schema: str | None) -> None:
    """ServiceError unless tables are found and created in public. `schema`: current_schema() of the connection, empty: there is none."""
    if schema != "public":
        raise ServiceError(
            f"the tables would be made in the schema {schema or '(none)'}, and Penstock's are in public: take search_path out of the "
            f'URL\'s options, or run `ALTER ROLE "{login}" SET search_path = public`'
        )


def check_encoding(database: str, encoding: str) -> None:
    """ServiceError unless the database stores every character. `encoding`: its server_encoding."""
    if encoding != "UTF8":
        raise ServiceError(
            f"the encoding of the database {database} is {encoding}, which loses every text with other characters; Penstock needs UTF8: run "
            f"`CREATE DATABASE penstock ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0` and name that database in DATABASE_URL ({GUIDE})"
        )


def make_roles(connection: Connection) -> str:
    """Create the roles that the server lacks, and let this login take all of them. ServiceError with the SQL if the login may not create them, or
    cannot create tables. Returns a sentence if the roles exist and only other logins may take them, which is not an error."""
    login, database, schema, may_create = connection.execute(text(_HERE)).one()
    if not may_create:
        raise ServiceError(no_place(login, database))
    check_schema(login, schema)
    missing = [role for role in ROLES if not _there(connection, role)]
    if missing and not connection.scalar(text(_MAY_MAKE)):
        raise ServiceError(
            f"the login {login} may not make the roles that processes take: as a superuser run `{statements(login)}` once on this server, "
            f"then `alembic upgrade head` again ({GUIDE})"
        )
    for role in missing:
        _make(connection, role)
    unavailable = [
        role for role in ROLES if not _may_take(connection, role) and not _granted(connection, role)
    ]
    if not unavailable:
        return ""
    return (
        f"the login {login} may not take the roles {', '.join(unavailable)}: processes need logins of their own that may, "
        f"or a superuser runs `{grants(login)}` ({GUIDE})"
    )


def _there(connection: Connection, role: str) -> bool:
    return bool(
        connection.scalar(text("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role)"), {"role": role})
    )


def _make(connection: Connection, role: str) -> None:
    """Create a role. Roles belong to the server, not to the database: another database may create the same role at the same moment."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"CREATE ROLE {role} NOLOGIN")
    except DBAPIError:
        if not _there(connection, role):
            raise


def _may_take(connection: Connection, role: str) -> bool:
    """Whether this login may take the role. From PostgreSQL 16 on, a membership may not allow it."""
    privilege = (
        "SET"
        if connection.scalar(text("SELECT current_setting('server_version_num')::int >= 160000"))
        else "MEMBER"
    )
    return bool(connection.scalar(text("SELECT pg_has_role(:role, :how)"), {"role": role, "how": privilege}))


def _granted(connection: Connection, role: str) -> bool:
    """Whether this login could grant itself the role: its creator can, and so can a login that may create any role."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"GRANT {role} TO CURRENT_USER")
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _REFUSED:
            raise
        return False
    return _may_take(connection, role)
