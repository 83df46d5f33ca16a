"""Accepting connections for as long as a process runs, also at a time when it has no descriptors or no memory left for them."""

import errno
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import anyio
import anyio.abc

from orchestrator.runtime.log import get

log = get(__name__)

PAUSE_S: Final = 0.2
"""Seconds until the next try. Without a pause a listener would take a whole core: the connection that it cannot take is still there."""
_SHORT: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_GONE: Final = {errno.ECONNABORTED, errno.EPROTO, errno.EINTR}


class Acceptor(Protocol):
    """A listener of streams."""

    async def accept(self) -> anyio.abc.SocketStream:
        """The next connection."""
        ...


def is_short(error: BaseException | None) -> bool:
    """Whether a connection was not accepted because this process or its machine is short of something that comes back."""
    return isinstance(error, OSError) and error.errno in _SHORT


async def serve(
    listener: Acceptor, handler: Callable[[anyio.abc.SocketStream], Coroutine[Any, Any, None]]
) -> None:
    """Call `handler` in a task of its own for each connection, without end. anyio's own loop ends with the first that cannot be accepted.

    Raises what `handler` raises, as a group; anyio.ClosedResourceError once the listener is closed; anyio.BrokenResourceError if it is broken."""
    waits = False
    async with anyio.create_task_group() as tasks:
        while True:
            try:
                stream = await listener.accept()
            except anyio.BrokenResourceError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and cause.errno in _GONE:
                    continue
                if not is_short(cause):
                    raise
                if not waits:
                    log.warning("connections.wait", error=str(cause))
                waits = True
                await anyio.sleep(PAUSE_S)
                continue
            waits = False
            tasks.start_soon(handler, stream)
