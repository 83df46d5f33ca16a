"""Errors of PostgreSQL while a run is read, as the error that the public API documents."""

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.transact import passing


@contextmanager
def as_service_error() -> Iterator[None]:
    """Raises ServiceError in place of an error that says that PostgreSQL is away."""
    try:
        yield
    except (OSError, PoolTimeout, DBAPIError, asyncpg.PostgresError) as error:
        if not passing(error):
            raise
        raise ServiceError("PostgreSQL is away, or took too long: try again") from error
