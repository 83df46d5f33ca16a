"""A gateway's claim on a rollout server (`pool.server_leases`): won, renewed, lost and released."""

import anyio

from orchestrator.contracts.states import ServerState
from orchestrator.pool.server_leases import ServerRow, ServerRows
from orchestrator.runtime.liveness import pause
from orchestrator.runtime.log import get

log = get(__name__)


class LeaseLost(Exception):
    """Another gateway owns the server."""


class ServerLease:
    """This gateway's claim on one server. `run` until cancelled; `epoch` is None while another gateway owns it."""

    def __init__(self, rows: ServerRows, url: str) -> None:
        self._rows = rows
        self.url = url
        self.epoch: int | None = None
        self.moved = anyio.Event()  # set, and replaced, when it is won or lost
        self._last_answer = -float("inf")  # when the data pool last answered
        self._since = 0.0  # start of the time in which it has answered without interruption

    async def run(self) -> None:
        """Claim the server as soon as it is free, and keep it."""
        while True:
            await self.turn()
            await pause(self._rows.ttl_s / 3)

    async def turn(self) -> None:
        """Renew or claim once; this attempt is abandoned when the data pool does not answer."""
        now, ttl = anyio.current_time(), self._rows.ttl_s
        if now - self._last_answer > ttl:
            self._since = now
        with anyio.move_on_after(ttl / 3):
            if self.epoch is None:
                # At our own start, and after the data pool was away, another owner gets one full TTL to renew its lease.
                epoch = await self._rows.claim(self.url, steal=now - self._since >= ttl)
                if epoch is not None:
                    log.info("server.leased", server=self.url, epoch=epoch)
                    self._set(epoch)
            elif not await self._rows.renew(self.url, self.epoch):
                log.warning("server.lease_lost", server=self.url, epoch=self.epoch)
                self._set(None)
            self._last_answer = anyio.current_time()

    async def write(
        self,
        state: ServerState,
        version: int | None,
        detail: str | None = None,
        weights_digest: str | None = None,
    ) -> None:
        """As `ServerRows.write`. Raises LeaseLost."""
        if self.epoch is None or not await self._rows.write(
            self.url, self.epoch, state, version, detail, weights_digest
        ):
            self._set(None)
            raise LeaseLost(self.url)

    async def read(self) -> ServerRow | None:
        """The owner's report."""
        return await self._rows.read(self.url)

    async def release(self) -> None:
        """Release the lease at an orderly shutdown."""
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            await self._rows.release(self.url, epoch)

    def _set(self, epoch: int | None) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.moved.set()
            self.moved = anyio.Event()
