"""Runs a program with a TCP listener that forwards to the gateway's Unix socket: for programs that only speak TCP.

    /usr/bin/python3 -S relay.py SOCKET PORT PROGRAM [ARGUMENTS …]

It is self-contained and placed inside a sandbox, where 127.0.0.1 belongs to this one program. It ends with the program, with its exit code. The
program starts once the port listens. Without a program it prints a line once the port listens, and stays.
"""

import errno
import socket
import subprocess
import sys
import time
from contextlib import suppress
from threading import Thread

READY = "listening\n"
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
PAUSE_S = 0.2  # until the next try: without a pause the relay would take a whole core


def relay(listener: socket.socket, target: str) -> None:
    """Accept connections forever, with one connection to `target` for each. While descriptors, memory or threads are used up, new connections wait
    or are dropped. OSError if the listener is closed."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError as error:
            if error.errno not in SHORT:
                raise
            time.sleep(PAUSE_S)
            continue
        try:
            Thread(target=_serve, args=(client, target), daemon=True).start()
        except RuntimeError:  # no thread can be started
            client.close()
            time.sleep(PAUSE_S)


def _serve(client: socket.socket, target: str) -> None:
    """Forward both directions. Where that fails, the client sees a dropped connection, as if the gateway were away."""
    with client, suppress(OSError, RuntimeError), socket.socket(socket.AF_UNIX) as server:
        server.connect(target)
        back = Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


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
