"""A listener of its own for each sandbox with access to a network, and the variables by which programs find it.

The sandbox gets a read-only directory with two files: the proxy's Unix socket, and the program that forwards a port of its own loopback to it. Both
end with the sandbox.
"""

import math
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from scaffolds import relay
from scaffolds.programs import PYTHON

from orchestrator.bus.feed import in_background
from orchestrator.contracts.network import Access
from orchestrator.runner.delegated_sandbox import DelegatedSandbox
from orchestrator.runner.egress.proxy import CONNECTIONS, Proxy
from orchestrator.runtime import accepting
from orchestrator.settings.timeouts import timeouts
from sandboxes.base import ArtifactLimits, Artifacts, Process, Sandbox, SandboxError, SandboxSpec
from sandboxes.owned import owned_directory, sockets_root

INSIDE: Final = "/run/penstock-egress"
# Above those of scaffolds (scaffolds.tcp), below the kernel's ephemeral ports.
PORTS: Final = range(28_000, 32_000)
NOT_PROXIED: Final = "localhost,127.0.0.1,::1,gateway"
_SOCKET: Final = "proxy.sock"
_RELAY: Final = "relay.py"


@dataclass(frozen=True, slots=True)
class Listener:
    """An open proxy for one sandbox. `port`: on the sandbox's loopback; random, because a sandbox without isolation shares the machine's."""

    directory: Path
    port: int

    def env(self, direct: str = NOT_PROXIED) -> Mapping[str, str]:
        """Variables that lead programs to the proxy, except to the hosts `direct`."""
        url = f"http://127.0.0.1:{self.port}"
        found = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": direct}
        return found | {name.lower(): value for name, value in found.items()}

    def spec(self, spec: SandboxSpec) -> SandboxSpec:
        """`spec` with the proxy, which its side services are reached without."""
        direct = ",".join(
            (NOT_PROXIED, *(name for each in spec.services for name in (each.name, *each.names)))
        )
        env = {**spec.env, **self.env(direct)}
        return replace(spec, binds={**spec.binds, self.directory: INSIDE}, env=env)

    async def begin(self, sandbox: Sandbox) -> None:
        """Open the port inside. SandboxError if it does not open."""
        process = await sandbox.start(
            [
                PYTHON,
                "-I",
                "-S",
                sandbox.path(f"{INSIDE}/{_RELAY}"),
                sandbox.path(f"{INSIDE}/{_SOCKET}"),
                str(self.port),
            ],
            timeout_s=math.inf,
        )
        output = problem = b""
        with anyio.move_on_after(timeouts().egress_connect_s):
            while not output.endswith(relay.READY.encode()):
                out, err = await process.read()
                output, problem = output + out, problem + err
                if not out and not err:
                    break
            else:
                return
        text = problem[-300:].decode(errors="replace").strip()
        raise SandboxError(
            f"the port that leads to the egress proxy does not open in the sandbox, which needs {PYTHON}: {text or 'it says nothing'}"
        )


class NetworkedSandbox(DelegatedSandbox):
    """Implements `sandboxes.base.Sandbox` for an open sandbox with a listener. `changed` ends the program that leads to the proxy, like every
    other one. It is started again with the next program, but for those of `without_network`."""

    def __init__(self, sandbox: Sandbox, listener: Listener) -> None:
        super().__init__(sandbox)
        self._listener = listener
        self._ended = False

    @property
    def inner(self) -> Sandbox:
        """The sandbox without the listener."""
        return self._sandbox

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        if self._ended:
            self._ended = False
            await self._listener.begin(self._sandbox)
        return await super().start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        self._ended = True
        return await super().changed(limits)


def without_network(sandbox: Sandbox) -> Sandbox:
    """The sandbox for programs of the platform that need no network: after `changed`, they do not start the way to the proxy again. It would cost
    time, and where it does not start, what the agent left could not be read."""
    return sandbox.inner if isinstance(sandbox, NetworkedSandbox) else sandbox


@asynccontextmanager
async def listening(access: Access, proxy: Proxy | None = None) -> AsyncIterator[Listener]:
    """A proxy with `access`, while the context is open. `proxy`: for tests alone."""
    served = proxy or Proxy(access)
    directory = sockets_root() / f"egress-{secrets.token_hex(8)}"
    with owned_directory(directory):
        directory.chmod(0o755)
        program = directory / _RELAY
        program.write_bytes(Path(relay.__file__).read_bytes())
        program.chmod(0o644)
        listener = await anyio.create_unix_listener(directory / _SOCKET, mode=0o666, backlog=CONNECTIONS)
        try:
            async with listener, in_background(partial(accepting.serve, listener, served.serve)):
                yield Listener(directory, secrets.choice(PORTS))
        finally:
            served.close()
