"""Forwards the traffic of an exec of the pod to its supervisor, and back: `python3 -IS FILE pipe`."""

from __future__ import annotations

import os
import select
import socket
import time

SOCKET = "/run/penstock/.supervisor/socket"
_WAIT_S = 20.0
_AGAIN_S = 0.02


def main() -> None:
    supervisor = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            supervisor.connect(SOCKET)
            break
        except OSError:  # it is still starting
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)
    while True:
        ready, _, _ = select.select([0, supervisor.fileno()], [], [])
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            supervisor.sendall(data)
        if supervisor.fileno() in ready:
            data = supervisor.recv(1 << 16)
            if not data:
                return
            while data:
                data = data[os.write(1, data) :]
