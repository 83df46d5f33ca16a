"""The reaper: leases that ran out. After the database or the reaper itself was away, every lease first gets one full TTL, once until its owner
renews it: on a machine so busy that every look is late, or where orchestrators begin again and again, dead holders are found nevertheless.

| produces | waits for | unblocked by |
|---|---|---|
| resumes, new attempts, new verifications, lost rollouts | expired leases (the database's clock) | time |
| the same of what is reported, whose steps the bus may carry | the bus as well | its return, and a full time to arrive |
| assignments that nobody took, once more | `rollout.remind_s` | time |
"""

from collections.abc import Collection

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RolloutState
from orchestrator.flow.complete import complete_reported, run_again
from orchestrator.flow.context import Flow
from orchestrator.flow.ingest import verify_again
from orchestrator.flow.rebuild import remind
from orchestrator.pool import history, leases
from orchestrator.pool.leases import LEASED, Expired
from orchestrator.pool.transact import transact
from orchestrator.progress import pause

# Holders say that they live without the bus. Only the steps of what is reported come over it.
WITHOUT_BUS = tuple(state for state in LEASED if state is not RolloutState.REPORTED)


async def reaper(flow: Flow) -> None:
    """Reap until cancelled."""
    ttl_s = flow.config.rollout.lease_ttl_s
    reminded = anyio.current_time()
    last: float | None = None  # when a look was committed
    whole = True  # that look: the bus was there when it began

    async def look(connection: AsyncConnection) -> bool:
        """Returns whether it was whole: one that began without the bus leaves alone what is reported."""
        there = flow.bus.reachable
        states = LEASED if there else WITHOUT_BUS
        # Inside the transaction, which may have waited for Postgres: whoever holds a lease waited as long.
        if last is None or anyio.current_time() - last > ttl_s / 2:
            await leases.grace(connection, flow.run_id, ttl_s, states=states)
        if not (there and whole):
            await leases.grace(connection, flow.run_id, ttl_s, states=[RolloutState.REPORTED], again=True)
        await reap(connection, flow, states)
        return there

    while True:
        whole = await transact(flow.engine, look, at="reaper.commit")
        last = anyio.current_time()
        if last - reminded > flow.config.rollout.remind_s:
            await transact(flow.engine, lambda connection: remind(connection, flow), at="reminder.commit")
            reminded = last
        await pause(min(1.0, ttl_s / 10))


async def reap(connection: AsyncConnection, flow: Flow, states: Collection[RolloutState] = LEASED) -> None:
    """Take every lease of `states` back that has run out."""
    await history.lock_run(connection, flow.run_id)
    for lease in await leases.expired(connection, flow.run_id, states=states):
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
