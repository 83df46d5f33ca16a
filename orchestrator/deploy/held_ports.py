"""The ports of the processes of `penstock up`: held for those that inherit a socket, watched for those that cannot.

| listener | while its process is dead |
|---|---|
| gateway, dashboard, embedded rollout servers, metrics at fixed ports | `penstock up` holds the port, and closes each connection |
| rollout servers of `servers.command` | the port is free; they start again once no other program has it |
| NATS | it moves to another port, which its clients read from a file (`embedded.nats_server`) |
| PostgreSQL | our processes use its Unix socket (`embedded.postgres_cluster`) |
"""

from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.deploy.embedded.held_socket import HeldSocket, hold
from orchestrator.deploy.embedded.ports import is_free
from orchestrator.settings.config import Config


class HeldPorts:
    """Sockets that are closed with `resources`, which outlast the processes."""

    def __init__(self, config: Config, resources: AsyncExitStack) -> None:
        self._config = config
        self._resources = resources

    def rollout_server(self, name: str) -> tuple[HeldSocket, ...]:
        """That of an embedded rollout server; it answers scrapes there, too."""
        return (self._hold("127.0.0.1", 0, setting=name),)

    def gateway(self) -> tuple[HeldSocket, ...]:
        """Its port for runners, that for sandboxes if they have one, and that for scrapes if it is fixed."""
        section = self._config.gateway
        ports = [self._hold(section.host, section.port, setting="gateway.port")]
        if section.sandbox_port:
            ports.append(self._hold(section.host, section.sandbox_port, setting="gateway.sandbox_port"))
        return (*ports, *self.metrics("gateway"))

    def web(self, url_file: Path) -> tuple[HeldSocket, ...]:
        """Its port first, by which it is found; port 0 takes that of the last start if it is free, because browsers remember it."""
        section = self._config.web
        held = self._hold(section.host, section.port, setting="web.port", preferred=_port_in(url_file))
        return (held, *self.metrics("web"))

    def metrics(self, process: str) -> tuple[HeldSocket, ...]:
        """That for the scrapes of a process, if it is fixed."""
        section = self._config.metrics
        port = section.ports.get(process, 0)
        return (self._hold(section.host, port, setting="metrics.ports"),) if port else ()

    def _hold(self, host: str, port: int, *, setting: str, preferred: int | None = None) -> HeldSocket:
        held = hold(host, port, setting=setting, preferred=preferred)
        self._resources.callback(held.close)
        return held


def check_not_taken(port: int) -> None:
    """Raise OSError, which delays a start and does not count as a death, if another program listens on a port of ours."""
    if not is_free(port):
        raise OSError(
            f"another program listens on its port {port}; it is started as soon as the port is free"
        )


def _port_in(url_file: Path) -> int | None:
    try:
        return urlsplit(url_file.read_text(encoding="ascii").strip()).port
    except (OSError, ValueError):
        return None
