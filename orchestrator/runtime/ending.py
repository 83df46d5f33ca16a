"""The end of a process by a signal: its work is cancelled once, and then has its time to end."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that request an orderly end: SIGINT, SIGTERM, and SIGHUP of a closing terminal, unless the process was started
    with SIGHUP ignored (`nohup`)."""
    signals = (signal.SIGINT, signal.SIGTERM)
    return signals if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*signals, signal.SIGHUP)


@asynccontextmanager
async def ended_by_signal(on_signal: Callable[[], object] = lambda: None) -> AsyncIterator[TaskGroup]:
    """A task group that the first ending signal cancels, after a call of `on_signal`; it is also cancelled when the block ends.

    Later signals change nothing: service managers send theirs to the supervisor and to each process, which then gets a second one from the
    supervisor. By default that one would kill it in the middle of its end.
    """
    with anyio.open_signal_receiver(*ending_signals()) as signals:
        async with anyio.create_task_group() as tasks:

            async def cancel_at_the_first() -> None:
                async for _ in signals:
                    on_signal()
                    tasks.cancel_scope.cancel()
                    return

            tasks.start_soon(cancel_at_the_first)
            yield tasks
            tasks.cancel_scope.cancel()
