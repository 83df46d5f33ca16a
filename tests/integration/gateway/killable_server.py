"""A rollout server process that a test kills, stops, and starts again at the same address.

Its port is outside the range from which the kernel takes ports of connections: while it is dead, a gateway dials it again and again.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestrator.deploy.embedded.ports import free_port
from tests.contract.rollout_server import ServerProcess, running_server


class KillableServer:
    """Made by `killable`. `url` stays the same over its lives."""

    def __init__(self, model: Path, *options: str) -> None:
        self._model = model
        self._options = options
        self._life = ExitStack()
        self._process = self._begin(free_port())
        self.url = self._process.url

    def _begin(self, port: int) -> ServerProcess:
        return self._life.enter_context(running_server(self._model, *self._options, "--port", str(port)))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        self._process.process.wait(timeout=10)

    def start(self) -> None:
        """Start another life, with the weights of the first, unless this one continues."""
        if self._process.process.poll() is not None:
            self._life.close()
            self._process = self._begin(int(self.url.rpartition(":")[2]))

    def end(self) -> None:
        """End without another start."""
        if self._process.process.poll() is None:
            self.signal(signal.SIGCONT)
        self._life.close()


@contextmanager
def killable(model: Path, *options: str) -> Iterator[KillableServer]:
    """A running server, ended with the context."""
    server = KillableServer(model, *options)
    try:
        yield server
    finally:
        server.end()
