"""Listening sockets that the supervisor holds for a process, so that no other program gets its port between two of its lives."""

import os
import socket

SOCKETS = "PENSTOCK_SOCKETS"
"""The environment variable with the descriptors of these sockets, with commas between them."""


def inherited(port: int) -> socket.socket | None:
    """The socket that was inherited for `port` (0: the first), listening and non-blocking. None: no supervisor holds one."""
    for number in filter(str.isdigit, os.environ.get(SOCKETS, "").split(",")):
        try:
            descriptor = os.dup(int(number))
        except OSError:  # of another process: the environment of its child
            continue
        try:
            found = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue
        listens = found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        )
        if listens and port in (0, found.getsockname()[1]):
            found.setblocking(False)
            return found
        found.close()
    return None
