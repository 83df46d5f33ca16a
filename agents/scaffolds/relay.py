"""Runs a program beside a TCP listener that leads to the gateway's Unix socket: for programs that only speak TCP.

    /usr/bin/python3 -S relay.py SOCKET PORT PROGRAM [ARGUMENTS …]

Self-contained, to be placed inside a sandbox; there 127.0.0.1 belongs to this one program. Ends with the program, with its exit code. The
program starts once the port listens.
"""

import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread


def relay(listener: socket.socket, target: str) -> None:
    """Accept for ever; one connection to `target` for each."""
    while True:
        client, _ = listener.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(target)
        except OSError:  # the client sees a dropped connection, as it would from a gateway that is away
            client.close()
            server.close()
            continue
        for source, sink in ((client, server), (server, client)):
            Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what arrives until one side ends, then tell the other."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def main(arguments: list[str]) -> int:
    target, port, *command = arguments
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        Thread(target=relay, args=(listener, target), daemon=True).start()
        code = subprocess.call(command)
        return code if code >= 0 else 128 - code  # as a shell says that a signal ended it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
