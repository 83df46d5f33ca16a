"""Ctrl-C for commands that run until it comes."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

T = TypeVar("T")


def heed() -> None:
    """From now on SIGINT raises KeyboardInterrupt, even if the command was started with SIGINT ignored. A script without job control starts
    commands with `&` that way: they would outlive the interrupted script, and `kill -INT` would not end them."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run(work: Callable[[], Awaitable[T]]) -> T:
    """As `anyio.run(work)`, but SIGINT cannot be lost. Raises KeyboardInterrupt once `work` has ended and cleaned up; at once on a second SIGINT.

    asyncio cancels the task once. If a connection breaks at that moment, its driver raises that error instead of the cancellation, and code that
    waits out outages retries. A cancel scope cancels until the task has ended.
    """
    heed()
    done: list[T] = []

    async def scoped() -> None:
        with anyio.CancelScope() as scope, _cancelled_by_sigint(scope):
            done.append(await work())

    anyio.run(scoped)
    if not done:
        raise KeyboardInterrupt
    return done[0]


@contextmanager
def _cancelled_by_sigint(scope: anyio.CancelScope) -> Iterator[None]:
    """The first SIGINT cancels the scope; the next one has its usual effect."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    loop = asyncio.get_running_loop()

    def first() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        scope.cancel()

    loop.add_signal_handler(signal.SIGINT, first)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
