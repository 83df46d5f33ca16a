"""Errors of PostgreSQL while a run is read, as the error that the public API documents."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.transact import DRIVER_ERRORS, passing

P = ParamSpec("P")


class Callbacks:
    """The functions that a caller gives to one call. Their errors are the caller's own, also those that look like a service's."""

    def __init__(self) -> None:
        self._raised: BaseException | None = None

    def own(self, callback: Callable[P, object]) -> Callable[P, None]:
        """`callback`, with its error remembered."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except BaseException as error:
                self._raised = error
                raise

        return call

    def raised(self, error: BaseException) -> bool:
        """Whether `error` came out of one of them."""
        return error is self._raised


@contextmanager
def as_service_error(callbacks: Callbacks | None = None) -> Iterator[None]:
    """Raises ServiceError in place of an error that says that PostgreSQL is away, unless one of `callbacks` raised it."""
    try:
        yield
    except DRIVER_ERRORS as error:
        if (callbacks is not None and callbacks.raised(error)) or not passing(error):
            raise
        raise ServiceError("PostgreSQL is away, or took too long: try again") from error
