"""Runs a program with a TCP listener that forwards to the gateway's Unix socket: for programs that only speak TCP.

    /usr/bin/python3 -S relay.py SOCKET PORT PROGRAM [ARGUMENTS …]

It is self-contained and placed inside a sandbox, where 127.0.0.1 belongs to this one program. It ends with the program, with its exit code. The
program starts once the port listens. Without a program it prints a line once the port listens, and stays.
"""

import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread

READY = "listening\n"


def relay(listener: socket.socket, target: str) -> None:
    """Accept connections forever, with one connection to `target` for each."""
    while True:
        client, _ = listener.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(target)
        except OSError:  # the client sees a dropped connection, as if the gateway were away
            client.close()
            server.close()
            continue
        for source, sink in ((client, server), (server, client)):
            Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Forward data until the source ends, then shut down the sink."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def main(arguments: list[str]) -> int:
    target, port, *command = arguments
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        if not command:
            sys.stdout.write(READY)
            sys.stdout.flush()
            relay(listener, target)
        Thread(target=relay, args=(listener, target), daemon=True).start()
        code = subprocess.call(command)
        return code if code >= 0 else 128 - code  # as a shell reports an end by a signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
