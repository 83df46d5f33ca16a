"""The NATS client, with what the library lacks: it sends its login only to the server that it means."""

import nats

from orchestrator.runtime.peer import check_peer


class NatsClient(nats.NATS):  # type: ignore[misc]  # untyped
    """`owner`: the user that the server must run as, on this machine; None: not checked.

    The login of a URL crosses in plain text. While a server is dead, a program of another user can take its port and would receive it.
    """

    def __init__(self, owner: int | None = None) -> None:
        super().__init__()
        self._owner = owner

    def _connect_command(self) -> bytes:
        """The line with the login. The server has sent its first line by now, so a process has accepted the connection. Raises StrangeServer."""
        if self._owner is not None:
            ends = self._transport._io_writer.get_extra_info
            check_peer(ends("sockname"), ends("peername"), self._owner)
        command: bytes = super()._connect_command()
        return command

    async def _process_op_err(self, e: Exception) -> None:
        """Without the library's last write to a connection that has failed.

        It flushes pending data when it closes after an error. On a closed transport the write raises, and its reading task ends with a traceback
        instead of the closed callback.
        """
        self._pending: list[bytes] = []
        self._pending_data_size = 0
        await super()._process_op_err(e)
