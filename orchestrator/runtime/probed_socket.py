"""Connections whose other end may vanish without closing them: a router on the way forgets a connection that is idle. A completion has no timeout,
so nothing else would end its wait."""

import socket
from typing import Any

IDLE_S = 30  # before the first probe
INTERVAL_S = 10
PROBES = 3  # without an answer: the connection breaks. A process that is only stopped or busy answers them.


def probed_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for an `address` of getaddrinfo, probed as by `probe`. Raises OSError."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    probe(made)
    return made


def probe(connection: socket.socket) -> None:
    """Let an idle TCP connection break a minute after its other end has vanished, one with data that is not acknowledged when the kernel gives up
    sending (about 15 minutes). Raises OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
