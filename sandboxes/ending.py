"""The end of a sandbox: its errors come out as they are, and never in place of an error of the block.

A plain task group puts every error of its block, the ends in a `finally` included, into an ExceptionGroup. Callers decide by the type of an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc


@asynccontextmanager
async def ended_by(end: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Wait for `end()` after the block, whatever happened there and despite a cancellation. An error of the block is raised before one of `end`,
    which becomes its note."""
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await end()
            except Exception as error:
                if failure is None:
                    raise
                failure.add_note(f"at its end, moreover: {type(error).__name__}: {error}")


@asynccontextmanager
async def tasks_ended_by(
    end: Callable[[], Awaitable[object]], *, cancelled: bool = False
) -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group for the block, with `end` as of `ended_by`. After it the tasks are waited for, or `cancelled`. No error of block, end and tasks is
    in an ExceptionGroup."""
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                async with ended_by(end):
                    yield tasks
            except Exception as error:  # noqa: BLE001 - raised below
                failure = error
            if cancelled:
                tasks.cancel_scope.cancel()
    except ExceptionGroup as errors:  # of a task
        failure = failure or first_error(errors)
    if failure is not None:
        raise failure


def first_error(error: Exception) -> Exception:
    """The first error that is not a group, depth first; `error` itself if it is one."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
