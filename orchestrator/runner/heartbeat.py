"""Heartbeats: renew the leases of a worker's unfinished work together.

| produces | waits for | unblocked by |
|---|---|---|
| renewed leases; cancelled work whose lease is lost | a third of the time to live | time |
| nothing while Postgres is away: work continues, and the reaper gives every lease a full time to live afterwards | Postgres | its return |

A lease is held from the assignment until its result is in the data pool. Results in the journal keep their leases as well, so that finished
work is not repeated because the bus was away. Work that a stopping worker leaves unfinished, or has no disk for, is returned at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus.journal import Journal
from orchestrator.pool import leases
from orchestrator.pool.settled import MessageKey
from orchestrator.pool.transact import transact
from orchestrator.runtime.liveness import pause
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

TRIES_PER_TTL = 6  # for a beat that Postgres does not answer


class Heart:
    """Beats while `run` runs."""

    def __init__(
        self, engine: AsyncEngine, owner: str, *, run_id: int, ttl_s: float, journal: Journal
    ) -> None:
        self._engine = engine
        self._run_id = run_id
        self._owner = owner
        self._ttl_s = ttl_s
        self._journal = journal
        self._held: dict[tuple[int, int], anyio.CancelScope] = {}
        self._left: dict[int, int] = {}  # unfinished at the stop of this worker: rollout → epoch

    @contextmanager
    def holding(self, rollout_id: int, epoch: int) -> Iterator[anyio.CancelScope]:
        """The scope of the work under one lease. It is cancelled at once when the lease is found lost (`cancelled_caught`)."""
        with anyio.CancelScope() as scope:
            self._held[rollout_id, epoch] = scope
            try:
                yield scope
            except anyio.get_cancelled_exc_class():
                if not scope.cancel_called:
                    self._left[rollout_id] = epoch
                raise
            finally:
                del self._held[rollout_id, epoch]

    async def return_lease(self, rollout_id: int, epoch: int) -> None:
        """Return one lease under which no work was possible, even if Postgres is away for long. No try is counted."""
        self._left[rollout_id] = epoch  # also if this worker is stopped in between
        await transact(
            self._engine,
            lambda connection: leases.give_back(connection, self._run_id, self._owner, {rollout_id: epoch}),
            at="lease.ended",
        )
        del self._left[rollout_id]

    async def give_back(self) -> None:
        """Return the unfinished work of a stopping worker, so that it need not wait for lease expiry. Best effort, within `timeouts.give_back_s`."""

        async def work(connection: AsyncConnection) -> int:
            return await leases.give_back(connection, self._run_id, self._owner, self._left)

        if self._left:
            with anyio.move_on_after(timeouts().give_back_s, shield=True):
                log.info("leases.given_back", leases=await transact(self._engine, work, at="lease.ended"))

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await pause(self._ttl_s / 3)
            await self.beat()

    async def beat(self) -> None:
        """Renew every lease once; cancel the work of lost leases."""
        requested = dict(self._held)
        waiting = [MessageKey.parse(entry.message.msg_id) for entry in self._journal.pending()]
        # Sorted: of two leases of one rollout only the newer one can still be held.
        epochs = dict(sorted([*requested, *((key.rollout_id, key.epoch) for key in waiting)]))

        async def renew(connection: AsyncConnection) -> set[int]:
            return await leases.heartbeat(connection, self._run_id, self._owner, epochs, self._ttl_s)

        if not epochs:
            return
        # After an outage the reaper gives one full time to live: the beat must arrive within it.
        longest_wait_s = min(timeouts().pool_retry_s, self._ttl_s / TRIES_PER_TTL)
        held = await transact(self._engine, renew, at="lease.renewed", longest_wait_s=longest_wait_s)
        for (rollout_id, epoch), scope in requested.items():
            if rollout_id not in held or epochs[rollout_id] != epoch:
                log.warning("lease.lost", rollout=rollout_id, epoch=epoch)
                scope.cancel()
