"""Connections whose other end may vanish without a word: a router on the way forgets a connection that stays still, and a completion, which has no
timeout, would wait for ever."""

import socket
from typing import Any

IDLE_S = 30  # before the first probe
INTERVAL_S = 10
PROBES = 3  # without an answer: the connection breaks. A process that is only stopped or busy answers them.


def probed_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for an `address` of getaddrinfo; its connection breaks a minute after its other end has vanished. Raises OSError."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    return made
