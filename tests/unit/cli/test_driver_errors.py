"""A refusal by PostgreSQL is one sentence; a mistake of ours keeps its traceback."""

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError

from orchestrator.cli.driver_errors import as_sentences
from orchestrator.contracts.errors import ServiceError


def test_missing_rights_and_tables_are_one_sentence_alone_and_in_groups() -> None:
    refused = asyncpg.InsufficientPrivilegeError("permission denied for table runs\nDETAIL: more")
    wrapped = DBAPIError("SELECT 1", {}, refused)
    for error in (
        refused,
        wrapped,
        ExceptionGroup("of a process", [ValueError("x"), ExceptionGroup("y", [wrapped])]),
    ):
        with pytest.raises(ServiceError) as caught, as_sentences():
            raise error
        assert "permission denied for table runs" in str(caught.value) and "\n" not in str(caught.value)
        assert "ops/guides/database.md" in str(caught.value)
    with pytest.raises(ServiceError, match="alembic upgrade head"), as_sentences():
        raise asyncpg.UndefinedTableError('relation "runs" does not exist')
    with pytest.raises(ServiceError, match="name the primary"), as_sentences():
        raise asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction")
    with pytest.raises(ServiceError, match="penstock doctor"), as_sentences():
        raise asyncpg.TooManyConnectionsError("sorry, too many clients already")


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(asyncpg.NotNullViolationError), as_sentences():
        raise asyncpg.NotNullViolationError("null value in column")
    with pytest.raises(ZeroDivisionError), as_sentences():
        raise ZeroDivisionError
