"""Concurrent execution of the tool calls of one reply, for white boxes.

    results = await at_once([partial(run, ctx, sandbox, reply, i) for i in range(len(reply.tool_calls))])

The results are in the order of the calls, whichever ends first. Cancelling ends all of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, cast

import anyio

T = TypeVar("T")

MAX_CALLS: Final = 8
"""Calls of one reply that run at the same time; the others wait their turn."""


async def at_once(calls: Sequence[Callable[[], Awaitable[T]]], *, most: int = MAX_CALLS) -> list[T]:
    """Run all `calls`, at most `most` at the same time, and return their results in the order of `calls`.

    The first exception cancels the calls that still run and propagates unchanged, in no group.
    """
    results: list[T | None] = [None] * len(calls)
    limiter = anyio.CapacityLimiter(most)

    async def run_call(number: int) -> None:
        async with limiter:
            results[number] = await calls[number]()

    try:
        async with anyio.create_task_group() as tasks:
            for number in range(len(calls)):
                tasks.start_soon(run_call, number)
    except ExceptionGroup as group:
        raise _first(group) from None
    return cast(list[T], results)


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error
