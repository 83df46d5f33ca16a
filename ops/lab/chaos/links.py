"""The relays of one run: one for each connection of each process. They exist before the stack starts and get their targets as it starts."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from ops.lab.chaos.ledger import Ledger
from ops.lab.chaos.plan import HARNESS, LINKS
from ops.lab.chaos.proxy import Proxy, proxying
from ops.lab.chaos.relay import Relay, listening
from orchestrator.bus.link import urls_of
from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.embedded.ports import LOOPBACK
from orchestrator.pool.address import address_of


@dataclass(frozen=True, slots=True)
class Links:
    """`route` is for `stack.up`. The socket has a directory of its own, as sandboxes require."""

    relays: dict[tuple[str, str], Relay]
    proxy: Proxy
    socket: Path

    def route(self, process: str, what: str, address: str) -> str:
        """Point the relay of a connection at `address`; returns the relay's address."""
        if what == "gateway-socket":
            self.relays[HARNESS, what].to = address
            return str(self.socket)
        relay = self.relays.get((process, what))
        if relay is None:
            return address
        if what == ProcessRole.POSTGRES:
            found = address_of(address)
            [(host, port)] = found.hosts
            relay.to = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
            login = f"{found.user}:{quote(found.password or '', safe='')}"
            return f"postgresql://{login}@{LOOPBACK}:{relay.port}/{found.database}?sslmode=disable"
        url = urlsplit(urls_of(address)[0] if what == ProcessRole.NATS else address)
        assert url.hostname is not None and url.port is not None
        if what == ProcessRole.ROLLOUT_SERVER:
            self.proxy.to = address
            relay.to = (LOOPBACK, self.proxy.port)
        else:
            relay.to = (url.hostname, url.port)
        login, at, _ = url.netloc.rpartition("@")
        return url._replace(netloc=f"{login}{at}{LOOPBACK}:{relay.port}").geturl()


def socket_directory(directory: Path) -> Path:
    """The directory of the socket that sandboxes see: a short path, the same for every start of a run, so that the next start removes it."""
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
