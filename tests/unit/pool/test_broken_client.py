"""An internal error of the client says that its connection is lost: neither the values nor the configuration are at fault."""

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError, StatementError

from orchestrator.api.reading import as_service_error
from orchestrator.cli.driver_errors import as_sentences
from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.address import address_of
from orchestrator.pool.engine import refusal
from orchestrator.pool.transact import of_content, passing

BROKEN = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
BROKEN_FORMS = [BROKEN, StatementError("(it)", "SELECT 1", {}, BROKEN), DBAPIError("SELECT 1", {}, BROKEN)]


@pytest.mark.parametrize("error", BROKEN_FORMS, ids=lambda error: type(error).__name__)
def test_a_broken_client_is_a_lost_connection_alone_and_wrapped(error: Exception) -> None:
    assert passing(error) and not of_content(error)
    with pytest.raises(ServiceError, match="PostgreSQL is away"), as_service_error():
        raise error
    with pytest.raises(ServiceError) as caught, as_sentences():
        raise ExceptionGroup("of a process", [error])
    assert "the connection to PostgreSQL broke (cannot switch" in str(caught.value)
    shown = f"{caught.value} {refusal(error, address_of('postgresql://u@h/d'))}"
    assert "database_url" not in shown and "DATABASE_URL" not in shown and "\n" not in shown


@pytest.mark.parametrize(
    "error",
    [
        StatementError("(it)", "SELECT :x", {}, TypeError("an int is required")),
        asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
        asyncpg.DataError("invalid input for query argument $1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_mistake_of_ours_is_not_repeated(error: Exception) -> None:
    assert not passing(error)
