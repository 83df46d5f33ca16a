"""The reaper: takes back expired leases. After an absence of the database or the reaper, every lease first gets one full TTL. It gets this only
once until its owner renews it. So dead holders are found even on a machine where every look is late, or where orchestrators keep restarting.

| produces | waits for | unblocked by |
|---|---|---|
| resumes, new attempts, new verifications, lost rollouts | expired leases (the database's clock) | time |
| the same for reported rollouts, whose steps the bus may carry | the bus as well | its return, and a full time to arrive |
| repeated assignments that no worker took | `rollout.reassign_after_s` | time |
"""

from collections.abc import Collection

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RolloutState
from orchestrator.pool import leases, transitions
from orchestrator.pool.leases import LEASED, Expired
from orchestrator.pool.transact import transact
from orchestrator.roles.complete import complete_reported, run_again
from orchestrator.roles.context import Flow
from orchestrator.roles.ingest import verify_again
from orchestrator.roles.rebuild import remind
from orchestrator.runtime.liveness import pause

# Holders renew their leases without the bus. Only the steps of reported rollouts come over it.
WITHOUT_BUS = tuple(state for state in LEASED if state is not RolloutState.REPORTED)


async def reaper(flow: Flow) -> None:
    """Reap until cancelled."""
    ttl_s = flow.config.rollout.lease_ttl_s
    last_reminder = anyio.current_time()
    last: float | None = None  # when the last pass was committed
    bus_was_reachable = True  # at the start of that pass

    async def reap_once(connection: AsyncConnection) -> bool:
        """One pass. Returns whether the bus was reachable at its start: if not, it leaves reported rollouts alone."""
        bus_reachable = flow.bus.reachable
        states = LEASED if bus_reachable else WITHOUT_BUS
        # Inside the transaction, which may have waited for Postgres: the lease holders waited as long.
        if last is None or anyio.current_time() - last > ttl_s / 2:
            await leases.grace(connection, flow.run_id, ttl_s, states=states)
        if not (bus_reachable and bus_was_reachable):
            await leases.grace(connection, flow.run_id, ttl_s, states=[RolloutState.REPORTED], again=True)
        await reap(connection, flow, states)
        return bus_reachable

    while True:
        bus_was_reachable = await transact(flow.engine, reap_once, at="reaper.commit")
        last = anyio.current_time()
        if last - last_reminder > flow.config.rollout.reassign_after_s:
            await transact(flow.engine, lambda connection: remind(connection, flow), at="reminder.commit")
            last_reminder = last
        await pause(min(1.0, ttl_s / 10))


async def reap(connection: AsyncConnection, flow: Flow, states: Collection[RolloutState] = LEASED) -> None:
    """Take back every expired lease of `states`."""
    await transitions.lock_run(connection, flow.run_id)
    for lease in await leases.expired(connection, flow.run_id, states=states):
        await transitions.count(
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
            reason = "announced steps never arrived"  # a no-op if they have arrived
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
