"""Ctrl-C for commands that go on until it comes."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

T = TypeVar("T")


def heed() -> None:
    """SIGINT raises KeyboardInterrupt from now on, also where the command was started with it ignored, as a script without job control starts what
    ends with `&`: it would go on when the script is long interrupted, and `kill -INT` would not end it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run(work: Callable[[], Awaitable[T]]) -> T:
    """As `anyio.run(work)`, but SIGINT cannot be lost. KeyboardInterrupt once `work` has ended and cleaned up; at once when a second one comes.

    asyncio asks the task to end once. Where a connection breaks at that moment, its driver raises that instead of the cancellation, and who is
    patient with outages takes it for one and goes on. A cancel scope asks until the task has ended.
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
    """The first SIGINT cancels the scope; the next one does what it does elsewhere."""
    if threading.current_thread() is not threading.main_thread():  # signals come to no other
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
