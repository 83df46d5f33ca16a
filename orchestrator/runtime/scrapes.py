"""The HTTP server of a process's metrics. No client holds it: threads, descriptors and time of its connections are bounded.

A client has `HEAD_S` for the whole head of its request and `ANSWER_S` to take each part of the answer. At most `MAX_CONNECTIONS` have a thread. A new
one above that closes the oldest whose head is not complete, else the oldest of all. A connection that ends without an answer is counted by its
reason; a traceback in the log of a process must be one of the product's own.
"""

import contextlib
import io
import socket
import sys
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, BinaryIO, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from orchestrator.runtime.accepting import PAUSE_S, is_short
from orchestrator.runtime.inherited import inherited
from orchestrator.runtime.log import get

log = get(__name__)

MAX_CONNECTIONS = 16
"""Connections that are read or answered at a time."""
HEAD_S = 10.0
ANSWER_S = 10.0
ROOM_S = 1.0  # a closed connection's thread ends within this time, or the new connection is closed as well
_HEAD_BYTES = 64 * 1024
_LINE_BYTES = 8 * 1024


class Lost(StrEnum):
    """Why a connection ended without an answer."""

    LATE = "late"
    """The client took too long to send its head or to take the answer."""
    GONE = "gone"
    """The client closed it, or sent no head that could be read."""
    CROWDED = "crowded"
    """There were too many, and this one was the oldest."""
    FAILED = "failed"
    """The process could not answer; the log has the reason."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, `MAX_CONNECTIONS` at most. `lost` is called, from any thread, with the reason for each that ends without an
    answer."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], answers: WSGIApplication, lost: Callable[[Lost], None]
    ) -> None:
        """Listen at `address`; port 0: a free one. Raises OSError if the port is taken."""
        self._lost = lost
        self._room = threading.Semaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._whole: dict[Any, bool] = {}  # each open connection, the oldest first: whether its head is whole
        super().__init__(address, _Scrape)
        self.set_app(answers)

    def server_bind(self) -> None:
        """Bind like the parent classes, without a DNS lookup of this machine's name, or take the socket that a supervisor holds for the port."""
        port = int(self.server_address[1])
        if port and (held := inherited(port)) is not None:
            self.socket.close()
            self.socket, self.server_address = held, held.getsockname()
        else:
            TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Raises OSError, after a pause if it has no descriptor left."""
        try:
            return cast("tuple[Any, Any]", super().get_request())
        except OSError as error:
            if is_short(error):
                time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection once there is room for it."""
        if not self._room.acquire(blocking=False):
            self._close_oldest()
            if not self._room.acquire(timeout=ROOM_S):
                self.shutdown_request(request)
                self._lost(Lost.CROWDED)
                return
        with self._lock:
            self._whole[request] = False
        try:
            super().process_request(request, client_address)
        except BaseException as error:  # no thread can be started
            self._forget(request)
            self.failed(error)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def head_is_whole(self, request: Any) -> None:
        """Note that the head of a connection's request has arrived: it is closed after those whose head has not."""
        with self._lock:
            if request in self._whole:
                self._whole[request] = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count a connection that ended without an answer. Only a fault of this process is logged."""
        error = sys.exc_info()[1]
        with self._lock:
            if request not in self._whole:
                return  # it was closed for another, and is counted
        if isinstance(error, TimeoutError):
            self._lost(Lost.LATE)
        elif isinstance(error, OSError):
            self._lost(Lost.GONE)
        else:
            self.failed(error)

    def failed(self, error: BaseException | None) -> None:
        """Log and count a request that this process could not answer."""
        log.error("metrics.not_answered", exc_info=error)
        self._lost(Lost.FAILED)

    def _close_oldest(self) -> None:
        with self._lock:
            unread = (each for each, whole in self._whole.items() if not whole)
            oldest = next(unread, None) or next(iter(self._whole), None)
            if oldest is None:
                return  # each of them has just ended
            del self._whole[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
        self._lost(Lost.CROWDED)

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._whole.pop(request, None)
        self._room.release()


class ScrapeServer6(ScrapeServer):
    """The same for an IPv6 address."""

    address_family = socket.AF_INET6


class _Head(io.RawIOBase):
    """The bytes of a connection until a moment of the monotonic clock. A slow client does not gain time by sending a little."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        super().__init__()
        self._connection, self._until, self._read = connection, until, 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for some bytes. Raises TimeoutError when it is too late, ConnectionAbortedError for a head that ends early or is too long."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the head of the request has not arrived in time")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        if self._read and (not count or self._read + count > _HEAD_BYTES):
            raise ConnectionAbortedError("the head of the request ends early or is too long")
        self._read += count
        return count


class _Scrape(WSGIRequestHandler):
    """One request: not logged, and ended when its client is too slow."""

    server: ScrapeServer

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Head(self.connection, time.monotonic() + HEAD_S))

    def parse_request(self) -> bool:
        """Read the head."""
        whole = super().parse_request()
        self.server.head_is_whole(self.request)
        self.connection.settimeout(ANSWER_S)
        return whole

    def handle(self) -> None:
        """Answer one request, as the parent class does, by our own `ServerHandler`."""
        self.raw_requestline = self.rfile.readline(_LINE_BYTES + 1)
        if len(self.raw_requestline) > _LINE_BYTES:
            raise ConnectionAbortedError("the first line of the request is too long")
        if not self.parse_request():
            return
        answer = _Answer(
            cast(BinaryIO, self.rfile),
            cast(BinaryIO, self.wfile),
            self.get_stderr(),
            self.get_environ(),
            multithread=True,
        )
        answer.request_handler = self
        answer.run(self.server.get_app())  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        """Do nothing."""


class _Answer(ServerHandler):
    """The answer to one request. The parent class prints the traceback of each one that fails."""

    request_handler: _Scrape

    def handle_error(self) -> None:
        """Leave a client that is slow or gone to the server; answer 500 for a fault of ours."""
        if isinstance(sys.exc_info()[1], OSError):
            raise
        super().handle_error()

    def log_exception(self, exc_info: Any) -> None:
        """Log and count it."""
        self.request_handler.server.failed(exc_info[1])
