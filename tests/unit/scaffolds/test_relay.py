"""The relay inside a sandbox lives as long as its program, also when that program leaves it no descriptors or threads."""

import errno
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from scaffolds import relay

from tests.waiting import eventually_blocking

CONNECTIONS = 40  # two descriptors each, of 64


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[str]:
    """A Unix socket that sends back what it gets."""
    target = str(tmp_path / "echo.sock")
    with socket.create_server(target, family=socket.AF_UNIX, backlog=2 * CONNECTIONS) as listener:
        Thread(target=echoes, args=(listener,), daemon=True).start()
        yield target
        listener.shutdown(socket.SHUT_RDWR)


def echoes(listener: socket.socket) -> None:
    def answer(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            while data := peer.recv(100):
                peer.sendall(data)

    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        Thread(target=answer, args=(peer,), daemon=True).start()


def test_the_relay_works_again_after_more_connections_than_it_has_descriptors(echo: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-S", str(Path(relay.__file__)), echo, str(port)]
    limited = ["bash", "-c", 'ulimit -n 64 && exec "$@"', "relay", *command]
    with subprocess.Popen(limited, stdout=subprocess.PIPE, text=True) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout is not None and process.stdout.readline() == relay.READY
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(CONNECTIONS)
        ]
        eventually_blocking(
            lambda: (
                process.poll() is not None  # it died
                or len(os.listdir(f"/proc/{process.pid}/fd")) >= 62
                or select.select(clients, [], [], 0)[0]  # it dropped one
            )
        )
        for client in clients:
            client.close()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as one_more:
            one_more.sendall(b"still here")
            assert one_more.recv(100) == b"still here"
        assert process.poll() is None


class Acceptor:
    """`accept` gives or raises each of `results`, and is closed after the last."""

    def __init__(self, *results: socket.socket | int) -> None:
        self.results = [*results, errno.EBADF]

    def accept(self) -> tuple[socket.socket, None]:
        result = self.results.pop(0)
        if isinstance(result, int):
            raise OSError(result, os.strerror(result))
        return result, None


@pytest.mark.parametrize(
    ("error", "failing", "served", "pauses"),
    [(errno.EMFILE, None, True, 1), (None, 0, False, 1), (None, 1, False, 0)],
)
def test_a_connection_waits_or_is_dropped_while_it_cannot_be_accepted_or_served(
    error: int | None,
    failing: int | None,
    served: bool,
    pauses: int,
    echo: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Thread] = []

    class Rare(Thread):
        """Thread number `failing` does not start."""

        def start(self) -> None:
            started.append(self)
            if len(started) - 1 == failing:
                raise RuntimeError("can't start new thread")
            super().start()

    paused: list[float] = []
    monkeypatch.setattr(relay, "time", SimpleNamespace(sleep=paused.append))
    monkeypatch.setattr(relay, "Thread", Rare)
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(60)
        results = [theirs] if error is None else [error, theirs]
        with pytest.raises(OSError, match="Bad file descriptor"):
            relay.relay(Acceptor(*results), echo)  # type: ignore[arg-type]
        if served:
            ours.sendall(b"served")
        assert ours.recv(100) == (b"served" if served else b"")
        assert paused == [relay.PAUSE_S] * pauses
    for thread in started:
        if thread.ident is not None:
            thread.join(60)
            assert not thread.is_alive()
