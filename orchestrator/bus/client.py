"""The NATS client, with what the library lacks: it sends its login only to the server that it means, and no bytes of others end it.

The library reads subjects and headers as text. Anyone may send other bytes, and NATS stores and delivers them. An error in its reading task leaves
a connection that is open and deaf, and the next connection gets the same message again.
"""

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats
import nats.errors
from nats.js.errors import APIError
from nats.protocol import parser

from orchestrator.bus.base import UnfitServer
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import BusMetrics, measured
from orchestrator.runtime.peer import check_peer

log = get(__name__)
T = TypeVar("T")

# A form feed and a vertical tab are blanks for the library, and parts of a subject for the server.
parser.MSG_RE = re.compile(
    rb"\AMSG[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)\r\n"
)
parser.HMSG_RE = re.compile(
    rb"\AHMSG[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n"
)


class NatsClient(nats.NATS):  # type: ignore[misc]  # untyped
    """`owner`: the user that the server must run as, on this machine; None: not checked.

    The login of a URL crosses in plain text. While a server is dead, a program of another user can take its port and would receive it.
    """

    def __init__(self, owner: int | None = None) -> None:
        super().__init__()
        self._owner = owner

    def _connect_command(self) -> bytes:
        """The line with the login. The server has sent its first line by now, so a process has accepted the connection, and it is encrypted if
        that line asks for it. Raises StrangeServer, and UnfitServer for a tls:// server without TLS: one that is not ours could leave it out."""
        uri = self._current_server.uri
        if uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise UnfitServer(
                f"the NATS server at {uri.hostname}:{uri.port} does not speak TLS, which tls:// asks for: switch it on there, or name it by nats://"
            )
        if self._owner is not None:
            ends = self._transport._io_writer.get_extra_info
            check_peer(ends("sockname"), ends("peername"), self._owner)
        command: bytes = super()._connect_command()
        return command

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> object:
        """With bytes that are not UTF-8 written as escapes."""
        return super()._build_message(sid, _readable(subject), _readable(reply), data, headers)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """The headers; None, counted and logged, if they cannot be read."""
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
        except Exception as error:  # noqa: BLE001  # counted and logged: bytes of others
            measured(BusMetrics).unread.labels("headers").inc()
            log.warning("headers.unread", beginning=repr((headers or b"")[:80]), error=repr(error))
            return None
        return found

    async def _process_op_err(self, e: Exception) -> None:
        """Without the library's last write to a connection that has failed.

        It flushes pending data when it closes after an error. On a closed transport the write raises, and its reading task ends with a traceback
        instead of the closed callback.
        """
        self._pending: list[bytes] = []
        self._pending_data_size = 0
        await super()._process_op_err(e)


class BadAnswer(nats.errors.Error):  # type: ignore[misc]  # untyped
    """An answer that is not one of NATS: anyone may answer to a subject, and the first answer counts."""


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer to a question to JetStream. Raises BadAnswer if it is not of its form."""
    try:
        return await ask()
    except APIError as error:
        if isinstance(error.code, int | None) and isinstance(error.err_code, int | None):
            raise
        problem: Exception = error
    except UnicodeEncodeError:  # of what we send
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        problem = error
    measured(BusMetrics).unread.labels("answer").inc()
    raise BadAnswer(f"an answer is not of NATS: {quoted(problem)}")


def _readable(text: bytes) -> bytes:
    return text if text.isascii() else text.decode(errors="backslashreplace").encode()
