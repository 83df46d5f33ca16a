"""The relays of one run: one for each connection of each process, made before the stack starts, pointed at it as it does."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.chaos.ledger import Ledger
from orchestrator.chaos.plan import HARNESS, LINKS
from orchestrator.chaos.proxy import Proxy, proxying
from orchestrator.chaos.relay import Relay, listening
from orchestrator.embedded.ports import LOOPBACK


@dataclass(frozen=True, slots=True)
class Links:
    """`route` is for `stack.up`. The socket's directory is its own, as sandboxes want it."""

    relays: dict[tuple[str, str], Relay]
    proxy: Proxy
    socket: Path

    def route(self, process: str, what: str, address: str) -> str:
        """Point the relay of a connection at `address`; returns the relay's."""
        if what == "gateway-socket":
            self.relays[HARNESS, what].to = address
            return str(self.socket)
        relay = self.relays.get((process, what))
        if relay is None:
            return address
        url = urlsplit(address)
        assert url.hostname is not None and url.port is not None
        if what == "rollout-server":
            self.proxy.to = address
            relay.to = (LOOPBACK, self.proxy.port)
        else:
            relay.to = (url.hostname, url.port)
        login, at, _ = url.netloc.rpartition("@")
        return url._replace(netloc=f"{login}{at}{LOOPBACK}:{relay.port}").geturl()

    def heal(self) -> None:
        """Every connection is a wire again."""
        for relay in self.relays.values():
            relay.pass_on()


def socket_directory(directory: Path) -> Path:
    """Where the socket of a run lies that sandboxes see: short, and the same for every start, so that the next one clears it away."""
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"penstock-chaos-{os.getuid()}-{digest}"


@asynccontextmanager
async def linked(ledger: Ledger) -> AsyncIterator[Links]:
    """All relays and the proxy, listening."""
    directory = socket_directory(ledger.directory)
    directory.mkdir(mode=0o755, exist_ok=True)
    socket = directory / "gateway.sock"
    try:
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(proxying(ledger))
            relays = {}
            for link in LINKS:
                inside = link[0] == HARNESS
                relays[link] = await stack.enter_async_context(
                    listening(path=socket, hear=ledger.answered) if inside else listening()
                )
            yield Links(relays, proxy, socket)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
