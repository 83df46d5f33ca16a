"""A listening socket that outlives the process that serves it.

The supervisor listens, each life of the process inherits the socket, and no other program can listen on the port while the process is dead. Then
the supervisor closes each connection, so that clients learn at once that no process serves. One that waited would be answered by the next life.
"""

import asyncio
import contextlib
import socket

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.embedded.ports import LOOPBACK, free_port

BACKLOG = 1024


class HeldSocket:
    """Listens on host:port. Made and used in the event loop of the supervisor; `close` ends it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._served = True

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def descriptor(self) -> int:
        """To be inherited by the process that serves."""
        return self._listener.fileno()

    def hand_over(self) -> None:
        """Leave the connections to the process."""
        if not self._served:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._served = True

    def turn_away(self) -> None:
        """Close every connection: no process serves."""
        if self._served:
            self._served = False
            asyncio.get_running_loop().add_reader(self._listener, self._close_next)

    def close(self) -> None:
        self.hand_over()
        self._listener.close()

    def _close_next(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            self._listener.accept()[0].close()


def hold(
    host: str = LOOPBACK, port: int = 0, *, setting: str = "", preferred: int | None = None
) -> HeldSocket:
    """Listen on `port`; 0 takes `preferred` if it is free, else a port outside the ephemeral range. Raises ConfigurationError, which names
    `setting`, if it is taken."""
    for _ in range(8):
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        chosen = port
        try:
            chosen = port or free_port(preferred=preferred, host=LOOPBACK if ":" in host else host)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, chosen))
            listener.listen(BACKLOG)
            listener.setblocking(False)
            return HeldSocket(listener)
        except OSError as error:
            listener.close()
            problem = f"cannot listen on {host}:{chosen} ({error.strerror}): stop what listens there or change {setting}"
            if port:
                break
    raise ConfigurationError(problem)
