"""The gateway over TCP, for programs that cannot speak HTTP over a Unix socket: a listener inside the sandbox that forwards to the socket.

tcp = Tcp()                                       one per attempt
files = {**tcp.files(), …}                        the listener's program
env = {"OPENAI_BASE_URL": tcp.base_url(gateway)}
argv = tcp.argv(gateway, ["my-agent", …])         starts the listener, then the program; ends with it, with its exit code
Launch(argv=argv, env=env)
"""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sandboxes.base import File
from scaffolds import relay
from scaffolds.base import Endpoint
from scaffolds.programs import PYTHON

RELAY: Final = "/home/agent/.penstock/relay.py"
"""The path of the listener's program inside a sandbox."""
PORTS: Final = range(20_000, 28_000)
"""The ports of listeners. They are below the kernel's ephemeral ports."""


class Tcp:
    """A port on 127.0.0.1. Each object has its own, because a sandbox without isolation shares the host's ports."""

    def __init__(self) -> None:
        self.port = secrets.choice(PORTS)

    def files(self) -> Mapping[str, File]:
        """The files to place."""
        return {RELAY: File(Path(relay.__file__).read_bytes())}

    def base_url(self, gateway: Endpoint) -> str:
        """`gateway.base_url` as clients inside reach it; ends in /v1."""
        return urlsplit(gateway.base_url)._replace(netloc=f"127.0.0.1:{self.port}").geturl()

    def argv(self, gateway: Endpoint, argv: Sequence[str]) -> list[str]:
        """A command line that starts `argv` once the port listens."""
        return [PYTHON, "-S", RELAY, gateway.socket, str(self.port), *argv]
