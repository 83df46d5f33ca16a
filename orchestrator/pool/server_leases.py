"""Rows of rollout servers: the owner of a server, and the state that the owner reports.

A server belongs to one run at a time, and within the run to one gateway, its owner. Only the owner changes its weights; other gateways of the
run read the row and hold their calls while it reports syncing. Ownership is a lease: every write checks its epoch, and it ends by the
database's clock.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.http_urls import one_spelling
from orchestrator.contracts.quote import cut_to
from orchestrator.contracts.states import ServerState
from orchestrator.pool.locks import lock_table
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import rollout_servers
from orchestrator.pool.transact import transact
from orchestrator.runtime.log import get

log = get(__name__)

MAX_DETAIL = 500  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRow:
    """The owner's report: `version` serves when the state is ready, `weights_digest` of its weights, where the server tells it. `live`: the
    lease has not run out."""

    state: ServerState
    version: int | None
    weights_digest: str | None
    owner: str | None
    live: bool


class ServerRows:
    """The rows of one run, written as `owner`: a name that no other living gateway has. A restarted gateway has the same name again."""

    def __init__(self, engine: AsyncEngine, run_id: int, *, owner: str, ttl_s: float) -> None:
        self._engine = engine
        self._run_id = run_id
        self._owner = owner
        self.ttl_s = ttl_s

    async def claim(self, url: str, *, steal: bool) -> int | None:
        """The epoch of a new lease; None while another gateway has one. `steal`: claim it also if the other's lease has run out."""
        until = func.clock_timestamp() + timedelta(seconds=self.ttl_s)
        free = or_(
            rollout_servers.c.owner.is_(None),
            rollout_servers.c.owner == self._owner,
            rollout_servers.c.lease_until.is_(None),
            *([rollout_servers.c.lease_until < func.clock_timestamp()] if steal else []),
        )

        async def work(connection: AsyncConnection) -> int | None:
            # Two runs may claim the server concurrently, and share no row.
            await lock_table(connection, "rollout_servers")
            claimed = select(rollout_servers.c.url).where(
                rollout_servers.c.run_id != self._run_id,
                rollout_servers.c.lease_until > func.clock_timestamp(),
            )
            if any(one_spelling(other) == url for other in await connection.scalars(claimed)):
                log.warning("server.of_another_run", server=url)
                return None
            if not await self._take_over(connection, url, free):
                return None
            ownership = {"owner": self._owner, "lease_until": until}
            new = upsert(rollout_servers).values(run_id=self._run_id, url=url, lease_epoch=1, **ownership)
            claim_row = new.on_conflict_do_update(
                index_elements=["run_id", "url"],
                set_={**ownership, "lease_epoch": rollout_servers.c.lease_epoch + 1},
                where=free,
            )
            found: int | None = await connection.scalar(claim_row.returning(rollout_servers.c.lease_epoch))
            return found

        return await transact(self._engine, work, at="server.lease.taken")

    async def _take_over(self, connection: AsyncConnection, url: str, free: ColumnElement[bool]) -> bool:
        """End the leases of the server's rows that older code wrote under other spellings of `url`. False while one of them is not `free`."""
        leased = select(rollout_servers.c.server_id, rollout_servers.c.url, free.label("free")).where(
            rollout_servers.c.run_id == self._run_id,
            rollout_servers.c.url != url,
            rollout_servers.c.lease_until.is_not(None),
        )
        others = [row for row in await connection.execute(leased) if one_spelling(row.url) == url]
        if others and all(row.free for row in others):
            of_others = rollout_servers.c.server_id.in_([row.server_id for row in others])
            await connection.execute(update(rollout_servers).where(of_others).values(lease_until=None))
        return all(row.free for row in others)

    async def renew(self, url: str, epoch: int) -> bool:
        """Extend the lease by another full TTL; False when another gateway has the lease by now."""
        until = func.clock_timestamp() + timedelta(seconds=self.ttl_s)
        return await self._update(url, epoch, {"lease_until": until}, at="server.lease.renewed")

    async def release(self, url: str, epoch: int) -> None:
        """End the lease, so that another gateway can claim the server at once."""
        await self._update(url, epoch, {"lease_until": None}, at="server.lease.ended")

    async def leave_others(self, urls: Collection[str]) -> int:
        """End this owner's leases of servers that are not among `urls`, and return their number. A gateway that was killed may start again without
        servers that it had: their leases would run out, and nothing would take them over."""
        others = (
            (rollout_servers.c.run_id == self._run_id)
            & (rollout_servers.c.owner == self._owner)
            & rollout_servers.c.lease_until.is_not(None)
            & rollout_servers.c.url.not_in(urls)
        )

        async def held(connection: AsyncConnection) -> bool:
            return bool(await connection.scalar(select(exists().where(others))))

        async def end(connection: AsyncConnection) -> int:
            result = await connection.execute(update(rollout_servers).where(others).values(lease_until=None))
            return result.rowcount

        if not await transact(self._engine, held, at="gateway.read"):
            return 0
        return await transact(self._engine, end, at="server.lease.ended")

    async def write(
        self,
        url: str,
        epoch: int,
        state: ServerState,
        version: int | None,
        detail: str | None = None,
        weights_digest: str | None = None,
    ) -> bool:
        """Write a server's state; `version` serves after a passed canary, with the weights of `weights_digest`. False when another gateway has the
        lease."""
        values = {
            "state": state.value,
            "version": version,
            "weights_digest": clean(weights_digest) if weights_digest else None,
            "detail": cut_to(clean(detail), MAX_DETAIL) if detail else None,
            "changed": func.clock_timestamp(),
        }
        return await self._update(url, epoch, values, at="server.row")

    async def read(self, url: str) -> ServerRow | None:
        """The row, regardless of the owner; a live one of older code in another spelling of the URL comes first."""

        async def work(connection: AsyncConnection) -> ServerRow | None:
            live = func.coalesce(rollout_servers.c.lease_until > func.clock_timestamp(), False)
            rows = await connection.execute(
                select(rollout_servers, live.label("live"))
                .where(rollout_servers.c.run_id == self._run_id)
                .order_by(live.desc(), rollout_servers.c.url != url)
            )
            found = next((row for row in rows if one_spelling(row.url) == url), None)
            if found is None:
                return None
            return from_wide_row(ServerRow, found)

        return await transact(self._engine, work, at="gateway.read")

    async def _update(self, url: str, epoch: int, values: Mapping[str, object], *, at: str) -> bool:
        async def work(connection: AsyncConnection) -> bool:
            result = await connection.execute(
                update(rollout_servers)
                .where(
                    rollout_servers.c.run_id == self._run_id,
                    rollout_servers.c.url == url,
                    rollout_servers.c.owner == self._owner,
                    rollout_servers.c.lease_epoch == epoch,
                )
                .values(**values)
            )
            return result.rowcount == 1

        return await transact(self._engine, work, at=at)
