"""The reaper: leases that ran out. After the database, the bus or the reaper itself was away, every lease first gets one full TTL, once:
on a machine so busy that every look is late, dead holders are found nevertheless.

| produces | waits for | unblocked by |
|---|---|---|
| resumes, new attempts, new verifications, lost rollouts | expired leases (the database's clock) | time |
| assignments that nobody took, once more | `rollout.remind_s` | time |
"""

from collections import deque
from datetime import datetime

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RolloutState
from orchestrator.flow.complete import complete_reported, run_again
from orchestrator.flow.context import Flow
from orchestrator.flow.ingest import verify_again
from orchestrator.flow.rebuild import remind
from orchestrator.pool import history, leases
from orchestrator.pool.leases import Expired
from orchestrator.pool.transact import transact
from orchestrator.progress import pause

GIVEN = 64


async def reaper(flow: Flow) -> None:
    """Reap until cancelled."""
    ttl_s = flow.config.rollout.lease_ttl_s
    reminded = anyio.current_time()
    last: float | None = None  # when a look was committed
    away = False  # the bus, at that look
    given: deque[datetime] = deque(maxlen=GIVEN)  # ends that late looks gave

    async def look(connection: AsyncConnection) -> None:
        # While the bus is away nobody could take over what is taken back; and what a reported rollout waits for cannot come.
        if away or not flow.bus.reachable:
            await leases.grace(connection, flow.run_id, ttl_s)
            return
        # Inside the transaction, which may have waited for Postgres: whoever holds a lease waited as long.
        if last is None or anyio.current_time() - last > ttl_s / 2:
            given.extend(await leases.grace(connection, flow.run_id, ttl_s, given=given))
        await reap(connection, flow)

    while True:
        await transact(flow.engine, look, at="reaper.commit")
        last, away = anyio.current_time(), not flow.bus.reachable
        if last - reminded > flow.config.rollout.remind_s:
            await transact(flow.engine, lambda connection: remind(connection, flow), at="reminder.commit")
            reminded = last
        await pause(min(1.0, ttl_s / 10))


async def reap(connection: AsyncConnection, flow: Flow) -> None:
    """Take every lease back that has run out."""
    await history.lock_run(connection, flow.run_id)
    for lease in await leases.expired(connection, flow.run_id):
        await history.count(
            connection, flow.run_id, "leases_given_back" if lease.given_back else "leases_expired"
        )
        await _take_back(connection, flow, lease)


async def _take_back(connection: AsyncConnection, flow: Flow, lease: Expired) -> None:
    ended = " gave it back before it was done" if lease.given_back else "'s lease ran out"
    resumable = False
    match lease.state:
        case RolloutState.RUNNING:
            reason, resumable = f"the runner{ended}", True
        case RolloutState.REPORTED:
            await complete_reported(connection, flow, [lease.rollout_id])
            reason = "announced steps never arrived"  # a no-op if they did after all
        case _:
            reason = f"the verifier runner{ended}"
            await verify_again(
                connection, flow, lease.rollout_id, lease.attempt, lease.epoch, reason,
                given_back=lease.given_back,
            )  # fmt: skip
            return
    await run_again(
        connection, flow, lease.rollout_id, lease.epoch, lease.state, reason,
        resumable=resumable, given_back=lease.given_back,
    )  # fmt: skip
