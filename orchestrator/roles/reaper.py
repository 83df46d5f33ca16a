"""The reaper: takes back expired leases. After an absence of the database or the reaper, every lease first gets one full TTL. It gets this only
once until its owner renews it. So dead holders are found even on a machine where every look is late, or where orchestrators keep restarting.
A step of the database's clock gives that time again, and shortens what a step back made long.

| produces | waits for | unblocked by |
|---|---|---|
| resumes, new attempts, new verifications, lost rollouts | expired leases (the database's clock) | time |
| the same for reported rollouts, whose steps the bus may carry | the bus as well | its return, and a full time to arrive |
| repeated assignments that no worker took | `rollout.reassign_after_s` | time |

One rollout can end only itself: if our own code fails for it, the others are taken back, and after `TRIES` passes its group is dead.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

import anyio
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.suspects import TRIES
from orchestrator.contracts.no_verdict import NoVerdict
from orchestrator.contracts.states import RolloutState
from orchestrator.pool import leases, transitions
from orchestrator.pool.leases import LEASED, Expired
from orchestrator.pool.transact import (
    NotReady,
    TransactionEnded,
    of_content,
    passing,
    sentence,
    transact,
    when_committed,
)
from orchestrator.roles.complete import complete_reported
from orchestrator.roles.consume import IDLE_ENDS
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.rebuild import remind
from orchestrator.roles.retry_policy import give_up, run_again, verify_again
from orchestrator.roles.reward_threads import MOMENT
from orchestrator.runtime.liveness import pause
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)


class Failures(Counter[tuple[int, int]]):
    """Failed tries to take back a lease, by rollout and epoch. `trying`: the lease of a try that has not ended, None between two. `silent`: leases
    at which PostgreSQL ended transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.trying: tuple[int, int] | None = None
        self.silent: set[tuple[int, int]] = set()


MAX_FAILURES = 1_000

# Holders renew their leases without the bus. Only the steps of reported rollouts come over it.
WITHOUT_BUS = tuple(state for state in LEASED if state is not RolloutState.REPORTED)


@dataclass(frozen=True, slots=True)
class Clocks:
    """A reading of the database's clock, somewhere between two readings of this process's."""

    before: float
    after: float
    database: datetime

    def step_s(self, earlier: "Clocks") -> float:
        """Seconds by which the database's clock certainly moved further than this process's since an earlier reading; negative: less far.

        >>> from datetime import timedelta
        >>> noon = datetime(2026, 1, 1, 12)
        >>> first = Clocks(10.0, 10.5, noon)
        >>> Clocks(20.0, 20.0, noon + timedelta(seconds=40)).step_s(first)
        30.0
        >>> Clocks(20.0, 50.0, noon + timedelta(seconds=40)).step_s(first)
        0.0
        >>> Clocks(20.0, 20.0, noon).step_s(first)
        -9.5
        """
        moved = (self.database - earlier.database).total_seconds()
        most, least = self.after - earlier.before, self.before - earlier.after
        return moved - most if moved > most else min(0.0, moved - least)


async def reaper(context: OrchestratorContext) -> None:
    """Reap until cancelled."""
    ttl_s = context.config.rollout.lease_ttl_s
    last_reminder = anyio.current_time()
    last: float | None = None  # when the last pass was committed
    clocks: Clocks | None = None  # in that pass
    failures = Failures()
    bus_was_reachable = True  # at the start of that pass

    async def reap_once(connection: AsyncConnection) -> tuple[bool, Clocks]:
        """One pass. Returns whether the bus was reachable at its start (if not, it leaves reported rollouts alone), and the clocks."""
        bus_reachable = context.bus.reachable
        states = LEASED if bus_reachable else WITHOUT_BUS
        await transitions.lock_run(connection, context.run_id)
        sent, database = anyio.current_time(), await leases.clock(connection)
        now = Clocks(sent, anyio.current_time(), database)
        step_s = 0.0 if clocks is None else now.step_s(clocks)
        if step_s > ttl_s / 2:  # set forward, or the machine slept: no holder could renew in time
            log.warning("database.clock_stepped", seconds=round(step_s, 1))
            await leases.grace(connection, context.run_id, ttl_s, states=states, again=True)
        elif step_s < -ttl_s / 2:
            log.warning("database.clock_stepped", seconds=round(step_s, 1))
            await leases.clock_set_back(connection, context.run_id, ttl_s)
        # Inside the transaction, which may have waited for Postgres: the lease holders waited as long.
        if last is None or anyio.current_time() - last > ttl_s / 2:
            await leases.grace(connection, context.run_id, ttl_s, states=states)
        if not (bus_reachable and bus_was_reachable):
            await leases.grace(connection, context.run_id, ttl_s, states=[RolloutState.REPORTED], again=True)
        await reap(connection, context, states, failures)
        return bus_reachable, now

    while True:
        try:
            bus_was_reachable, clocks = await transact(
                context.engine, reap_once, at="reaper.commit", most_idle_ends=IDLE_ENDS
            )
        except TransactionEnded as error:
            _silent(failures, error)
            await pause(min(1.0, ttl_s / 10))
            continue
        last = anyio.current_time()
        if last - last_reminder > context.config.rollout.reassign_after_s:
            await transact(
                context.engine, lambda connection: remind(connection, context), at="reminder.commit"
            )
            last_reminder = last
        await pause(min(1.0, ttl_s / 10))


async def reap(
    connection: AsyncConnection,
    context: OrchestratorContext,
    states: Collection[RolloutState] = LEASED,
    failures: Failures | None = None,
) -> None:
    """Take back every expired lease of `states`. An error of PostgreSQL that nothing explains (a damaged page, a missing right) is counted against
    its lease, as one of our code is. Only if it meets all leases, of several groups, the platform is at fault: it is raised."""
    failures = Failures() if failures is None else failures
    moment_s = timeouts().pool_idle_s * MOMENT  # the queue row is locked
    context = replace(context, reward_threads=context.reward_threads.within(moment_s))
    await transitions.lock_run(connection, context.run_id)
    expired = await leases.expired(connection, context.run_id, states=states)
    if len(failures) > MAX_FAILURES:  # another process has taken back what is no longer among them
        for key in failures.keys() - {(lease.rollout_id, lease.epoch) for lease in expired}:
            del failures[key]
        failures.silent &= failures.keys()
    unexplained: dict[int, DBAPIError] = {}
    answered = False
    for lease in expired:
        failures.trying = lease.rollout_id, lease.epoch
        try:
            if failures.trying in failures.silent and failures[failures.trying] >= TRIES:
                raise TransactionEnded(
                    f"PostgreSQL ended its transactions, because nothing was sent for {timeouts().pool_idle_s:g} s"
                )
            async with connection.begin_nested():
                await _take_back(connection, context, lease)
            answered = True
        except NotReady:
            answered = True
            continue  # until a later pass finds its group's rewards, the lease stays as it is
        except Exception as error:  # counted and logged; what is not this rollout's fault is raised
            if passing(error):
                raise
            if isinstance(error, DBAPIError) and not of_content(error):
                unexplained[lease.group_id] = error
            else:
                answered = True  # PostgreSQL is not at fault
            await _failed(connection, context, lease, error, failures)
        await transitions.count(
            connection, context.run_id, "leases_given_back" if lease.given_back else "leases_expired"
        )
    failures.trying = None
    if len(unexplained) > 1 and not answered:
        raise next(iter(unexplained.values()))


def _silent(failures: Failures, error: TransactionEnded) -> None:
    """Count a pass that PostgreSQL has ended for its silence against the lease that it was at: after `TRIES` of them it is given up."""
    if failures.trying is not None:
        failures[failures.trying] += 1
        failures.silent.add(failures.trying)
    log.error("reaper.ended", lease=failures.trying, error=str(error))


async def _failed(
    connection: AsyncConnection,
    context: OrchestratorContext,
    lease: Expired,
    error: Exception,
    failures: Failures,
) -> None:
    """Leave a lease for the next pass, or give its rollout up."""
    key = lease.rollout_id, lease.epoch
    failures[key] += 1
    log.error("lease.not_taken_back", rollout=lease.rollout_id, tries=failures[key], exc_info=error)
    if failures[key] >= TRIES:
        why = sentence(error) if isinstance(error, DBAPIError) else str(error)
        reason = f"its lease could not be taken back: {type(error).__name__}: {why}"
        try:
            async with connection.begin_nested():
                await give_up(connection, context, lease.rollout_id, lease.state, lease.epoch, reason)
        except Exception as fault:  # counted and logged; the other leases do not wait for it
            if passing(fault):
                raise
            log.error("rollout.not_given_up", rollout=lease.rollout_id, exc_info=fault)
            return
        when_committed(lambda: failures.pop(key, None))


async def _take_back(connection: AsyncConnection, context: OrchestratorContext, lease: Expired) -> None:
    ended = " gave it back before it was done" if lease.given_back else "'s lease ran out"
    resumable = False
    match lease.state:
        case RolloutState.RUNNING:
            reason, resumable = f"the runner{ended}", True
        case RolloutState.REPORTED:
            await complete_reported(connection, context, [lease.rollout_id])
            reason = "announced steps never arrived"  # a no-op if they have arrived
        case _:
            reason = NoVerdict.LEASE.of(ended)
            await verify_again(
                connection,
                context,
                lease.rollout_id,
                lease.attempt,
                lease.epoch,
                reason,
                given_back=lease.given_back,
            )
            return
    await run_again(
        connection,
        context,
        lease.rollout_id,
        lease.epoch,
        lease.state,
        reason,
        resumable=resumable,
        given_back=lease.given_back,
    )
