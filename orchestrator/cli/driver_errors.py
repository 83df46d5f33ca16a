"""PostgreSQL's refusals of a command, as one sentence: rights, a missing table, a server that is away. Other driver errors are our own mistakes,
and keep their traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.contracts.errors import ServiceError

# SQLSTATE: rights; a read-only session; missing table, column, function.
# By class: connection, login, missing database or schema, resources, shutdown, system.
_STATES = ("42501", "25006", "42P01", "42703", "42883")
_CLASSES = ("08", "28", "3D", "3F", "53", "57", "58")
_ADVICE = {
    "42501": "give its login the rights that ops/guides/database.md names",
    "25006": "name the primary in DATABASE_URL, without default_transaction_read_only",
    "42P01": "is the database migrated? `alembic upgrade head`",
    "42703": "is the database migrated? `alembic upgrade head`",
    "42883": "is the database migrated? `alembic upgrade head`",
}


@contextmanager
def as_sentences() -> Iterator[None]:
    """Replaces such a driver error, alone or in a group, by a ServiceError of one sentence."""
    try:
        yield
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        raise ServiceError(sentence) from error


def _sentence(error: BaseException) -> str | None:
    if "asyncpg" not in sys.modules:  # the command did not use a database
        return None
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_sentence, error.exceptions)), None)
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sys.modules["asyncpg"].InternalClientError):
        return f"the connection to PostgreSQL broke ({str(cause).partition(chr(10))[0]}): look whether this was done, and try again if it was not"
    state = str(getattr(cause, "sqlstate", None) or "")
    if state not in _STATES and state[:2] not in _CLASSES:
        return None
    first = str(cause).partition("\n")[0]
    first = first.rpartition("'>: ")[2] or first
    advice = _ADVICE.get(state, "check services.database_url and DATABASE_URL with `penstock doctor -c RUN`")
    return f"PostgreSQL refused this ({first}): {advice}"
