"""A program that takes a port as soon as it is free, keeps it, and tells what it receives there."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import eventually

NATS = b'INFO {"server_id":"N","version":"2.11.0","max_payload":8388608,"headers":true,"auth_required":true,"jetstream":true,"proto":1}\r\n'
"""The first line of a NATS server that asks for a login."""
POSTGRES = b"R\0\0\0\x08\0\0\0\x03"
"""PostgreSQL asks for the password in plain text: clients answer such a server as they answer any other."""
USER = 60_999
"""Its user id, where the tests run as root; else ours."""

_PROGRAM = """
import json, os, socket, sys, threading, time

port, greeting, answer, user = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3]), int(sys.argv[4])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def tell(**found):
    os.write(1, json.dumps(found).encode() + b"\\n")


def serve(connection):
    try:
        tell(connected=True)
        connection.sendall(greeting)
        while data := connection.recv(65536):
            tell(received=data.hex())
            connection.sendall(answer)
    except OSError:
        pass


while True:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        break
    except OSError:
        listener.close()
        time.sleep(0.001)
tell(listening=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@dataclass(frozen=True, slots=True)
class Squatter:
    """`output`: its reports, one JSON object a line."""

    process: subprocess.Popen[bytes]
    output: Path

    def _reports(self) -> list[dict[str, str]]:
        whole, _, _ = self.output.read_text().rpartition("\n")  # it may be writing the next one
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def listens(self) -> bool:
        return any("listening" in report for report in self._reports())

    @property
    def connections(self) -> int:
        return sum("connected" in report for report in self._reports())

    @property
    def received(self) -> bytes:
        return b"".join(bytes.fromhex(report.get("received", "")) for report in self._reports())

    async def until_listening(self) -> None:
        await eventually(lambda: self.listens)


@contextmanager
def squatting(
    directory: Path, port: int, *, greeting: bytes = b"", answer: bytes = b""
) -> Iterator[Squatter]:
    """Wait for `port` in another process. Each connection gets `greeting`, and `answer` to whatever it sends."""
    output = directory / f"squatter-{port}"
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(port), greeting.hex(), answer.hex(), str(USER)]
    with output.open("wb") as opened:
        process = subprocess.Popen(argv, stdout=opened, cwd="/")
    try:
        yield Squatter(process, output)
    finally:
        process.kill()
        process.wait()
