"""Rows of rollout servers: who owns one, and what its owner says of it.

A server belongs to one run at a time, and within it to one gateway, its owner, who alone changes its weights; other gateways of the run
read the row and hold their calls while it says syncing. The owner is known by a lease: its epoch is checked in every write, its end is on
the database's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import anyio
from sqlalchemy import exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.states import ServerState
from orchestrator.log import get
from orchestrator.pool.tables import rollout_servers
from orchestrator.pool.transact import transact
from orchestrator.progress import pause

log = get(__name__)


@dataclass(frozen=True, slots=True)
class ServerRow:
    """What the owner says: `version` serves when the state is ready. `live`: the lease has not run out."""

    state: ServerState
    version: int | None
    owner: str | None
    live: bool


class ServerRows:
    """The rows of one run, written as `owner`: a name that no other living gateway has, and that a restarted one has again."""

    def __init__(self, engine: AsyncEngine, run_id: int, owner: str, ttl_s: float) -> None:
        self._engine = engine
        self._run_id = run_id
        self._owner = owner
        self.ttl_s = ttl_s

    async def claim(self, url: str, *, steal: bool) -> int | None:
        """The epoch of a new lease; None while somebody else has one. `steal`: also when theirs has run out."""
        until = func.clock_timestamp() + timedelta(seconds=self.ttl_s)
        free = or_(
            rollout_servers.c.owner.is_(None),
            rollout_servers.c.owner == self._owner,
            rollout_servers.c.lease_until.is_(None),
            *([rollout_servers.c.lease_until < func.clock_timestamp()] if steal else []),
        )

        async def work(connection: AsyncConnection) -> int | None:
            # Two runs may ask at once, and have no row in common.
            await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(url, 0))))
            others = exists().where(
                rollout_servers.c.url == url,
                rollout_servers.c.run_id != self._run_id,
                rollout_servers.c.lease_until > func.clock_timestamp(),
            )
            if await connection.scalar(select(others)):
                log.warning("server.of_another_run", server=url)
                return None
            mine = {"owner": self._owner, "lease_until": until}
            new = upsert(rollout_servers).values(run_id=self._run_id, url=url, lease_epoch=1, **mine)
            taken = new.on_conflict_do_update(
                index_elements=["run_id", "url"],
                set_={**mine, "lease_epoch": rollout_servers.c.lease_epoch + 1},
                where=free,
            )
            found: int | None = await connection.scalar(taken.returning(rollout_servers.c.lease_epoch))
            return found

        return await transact(self._engine, work, at="server.lease.taken")

    async def renew(self, url: str, epoch: int) -> bool:
        """Another full TTL; False when the lease is somebody else's by now."""
        until = func.clock_timestamp() + timedelta(seconds=self.ttl_s)
        return await self._update(url, epoch, {"lease_until": until}, at="server.lease.renewed")

    async def release(self, url: str, epoch: int) -> None:
        """Let another gateway have it at once."""
        await self._update(url, epoch, {"lease_until": None}, at="server.lease.ended")

    async def write(
        self, url: str, epoch: int, state: ServerState, version: int | None, detail: str = ""
    ) -> bool:
        """Say what a server is doing; `version` is what serves after a passed canary. False when the lease is somebody else's."""
        values = {
            "state": state.value,
            "version": version,
            "detail": detail[:500] or None,
            "changed": func.clock_timestamp(),
        }
        return await self._update(url, epoch, values, at="server.row")

    async def read(self, url: str) -> ServerRow | None:
        """The row, whoever owns the server."""

        async def work(connection: AsyncConnection) -> ServerRow | None:
            live = rollout_servers.c.lease_until > func.clock_timestamp()
            found = (
                await connection.execute(
                    select(rollout_servers, live.label("live")).where(
                        rollout_servers.c.run_id == self._run_id, rollout_servers.c.url == url
                    )
                )
            ).first()
            if found is None:
                return None
            return ServerRow(ServerState(found.state), found.version, found.owner, bool(found.live))

        return await transact(self._engine, work, at="gateway.read")

    async def _update(self, url: str, epoch: int, values: Mapping[str, object], *, at: str) -> bool:
        async def work(connection: AsyncConnection) -> bool:
            done = await connection.execute(
                update(rollout_servers)
                .where(
                    rollout_servers.c.run_id == self._run_id,
                    rollout_servers.c.url == url,
                    rollout_servers.c.owner == self._owner,
                    rollout_servers.c.lease_epoch == epoch,
                )
                .values(**values)
            )
            return done.rowcount == 1

        return await transact(self._engine, work, at=at)


class LeaseLost(Exception):
    """Another gateway owns the server."""


class ServerLease:
    """This gateway's claim on one server. `run` until cancelled; `epoch` is None while another gateway owns it."""

    def __init__(self, rows: ServerRows, url: str) -> None:
        self._rows = rows
        self.url = url
        self.epoch: int | None = None
        self.moved = anyio.Event()  # set, and replaced, when it is won or lost
        self._heard = -float("inf")  # when the data pool last answered
        self._since = 0.0  # since when it has answered every time

    async def run(self) -> None:
        """Claim it as soon as it is free, and keep it."""
        while True:
            await self.turn()
            await pause(self._rows.ttl_s / 3)

    async def turn(self) -> None:
        """Renew or claim; given up for this time when the data pool does not answer."""
        now, ttl = anyio.current_time(), self._rows.ttl_s
        if now - self._heard > ttl:
            self._since = now
        with anyio.move_on_after(ttl / 3):
            if self.epoch is None:
                # At our own start, and after the data pool was away, whoever owns it gets one full TTL to say that they live.
                epoch = await self._rows.claim(self.url, steal=now - self._since >= ttl)
                if epoch is not None:
                    log.info("server.leased", server=self.url, epoch=epoch)
                    self._set(epoch)
            elif not await self._rows.renew(self.url, self.epoch):
                log.warning("server.lease_lost", server=self.url, epoch=self.epoch)
                self._set(None)
            self._heard = anyio.current_time()

    async def write(self, state: ServerState, version: int | None, detail: str = "") -> None:
        """As `ServerRows.write`. Raises LeaseLost."""
        if self.epoch is None or not await self._rows.write(self.url, self.epoch, state, version, detail):
            self._set(None)
            raise LeaseLost(self.url)

    async def read(self) -> ServerRow | None:
        """What the owner says."""
        return await self._rows.read(self.url)

    async def release(self) -> None:
        """Give it back, at the end of an orderly life."""
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            await self._rows.release(self.url, epoch)

    def _set(self, epoch: int | None) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.moved.set()
            self.moved = anyio.Event()
