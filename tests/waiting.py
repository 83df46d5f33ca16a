"""How tests wait: for a condition, or for a time in which nothing may change; and how a player next to a test acts again and again.

Tests do not sleep themselves (ruff's TID251).
"""

import inspect
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import anyio

T = TypeVar("T")


@overload
async def eventually(
    read: Callable[[], Awaitable[T]],
    holds: Callable[[T], object] = ...,
    *,
    within_s: float = ...,
    every_s: float = ...,
) -> T: ...
@overload
async def eventually(
    read: Callable[[], T], holds: Callable[[T], object] = ..., *, within_s: float = ..., every_s: float = ...
) -> T: ...
async def eventually(
    read: Callable[[], Any],
    holds: Callable[[Any], object] = bool,
    *,
    within_s: float = 60.0,
    every_s: float = 0.01,
) -> Any:
    """Read a value, awaited where it is awaitable, every `every_s` seconds until it holds, and return it.

    Raises TimeoutError after `within_s` seconds.
    """
    with anyio.fail_after(within_s):
        while True:
            found = read()
            if inspect.isawaitable(found):
                found = await found
            if holds(found):
                return found
            await anyio.sleep(every_s)  # noqa: TID251


def eventually_blocking(read: Callable[[], T], *, within_s: float = 60.0, every_s: float = 0.01) -> T:
    """`eventually` for a test without an event loop: read a value until it is true, and return it.

    Raises TimeoutError after `within_s` seconds.
    """
    end = time.monotonic() + within_s
    while not (found := read()):
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(every_s)  # noqa: TID251
    return found


async def repeatedly(act: Callable[[], object], *, every_s: float) -> None:
    """Act, awaited where it is awaitable, now and every `every_s` seconds until cancelled: for a player next to the test, such as one who feeds
    or disturbs what is tested."""

    async def acted() -> bool:
        done = act()
        if inspect.isawaitable(done):
            await done
        return False

    await eventually(acted, within_s=math.inf, every_s=every_s)


async def stays_true_for(seconds: float, condition: Callable[[], object], *, every_s: float = 0.01) -> None:
    """Assert that a condition, awaited where it is awaitable, holds now and for `seconds`, enough time for an event that must not happen."""
    end = anyio.current_time() + seconds

    async def over() -> bool:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        assert holds, "it does not stay true"
        return anyio.current_time() >= end

    await eventually(over, within_s=math.inf, every_s=every_s)
