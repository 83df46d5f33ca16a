"""Leads what comes over an exec of the pod to its keeper, and back: `python3 -IS FILE pipe`."""

from __future__ import annotations

import os
import select
import socket
import time

SOCKET = "/run/penstock/.keeper/socket"
_WAIT_S = 20.0
_AGAIN_S = 0.02


def main() -> None:
    keeper = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            keeper.connect(SOCKET)
            break
        except OSError:  # it is just starting
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)
    while True:
        ready, _, _ = select.select([0, keeper.fileno()], [], [])
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            keeper.sendall(data)
        if keeper.fileno() in ready:
            data = keeper.recv(1 << 16)
            if not data:
                return
            while data:
                data = data[os.write(1, data) :]
