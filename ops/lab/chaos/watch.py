"""Progress and work in flight, read from the history in the data pool, the proxy and the ledger.

| produces | waits for | unblocked by |
|---|---|---|
| when each component last made progress | new rows of `transitions` | any process at work |

It reads over its own connection, which has no relay. While Postgres is down it learns nothing new.
"""

import time
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from ops.lab.chaos.ledger import Ledger
from ops.lab.chaos.proxy import Proxy
from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.states import BatchState, Entity, GroupState, RolloutState

AWAY: Final = (
    OSError,
    PoolTimeout,
    DBAPIError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
POLL_INTERVAL_S = 0.05
ANSWER_S = 5.0
NEW = """select transition_id, kind, from_state, to_state, extract(epoch from at)::float8 as at from transitions
 where run_id = :run and transition_id > :last order by 1 limit 2000"""
WORK = """select (select count(*) from rollouts where run_id = :run and state = 'running') as running,
       (select count(*) from rollouts where run_id = :run and state in ('finished', 'verifying')) as verifying,
       (select count(*) from rollouts where run_id = :run and state not in ('waiting', 'verified', 'lost')) as unfinished,
       (select count(*) from batches where run_id = :run and state in ('open', 'closed')) as batches,
       (select state from runs where run_id = :run) as run"""

# Which components cause each state change.
DOERS: Final = {
    (Entity.ROLLOUT, RolloutState.RUNNING): (ProcessRole.RUNNER,),
    (Entity.ROLLOUT, RolloutState.VERIFYING): (ProcessRole.VERIFIER,),
    (Entity.ROLLOUT, RolloutState.REPORTED): (ProcessRole.ORCHESTRATOR, ProcessRole.NATS),
    (Entity.ROLLOUT, RolloutState.FINISHED): (ProcessRole.ORCHESTRATOR,),
    (Entity.ROLLOUT, RolloutState.VERIFIED): (ProcessRole.ORCHESTRATOR, ProcessRole.NATS),
    (Entity.ROLLOUT, RolloutState.QUEUED): (ProcessRole.ORCHESTRATOR,),
    (Entity.GROUP, GroupState.DISPATCHED): (ProcessRole.ORCHESTRATOR,),
    (Entity.GROUP, GroupState.READY): (ProcessRole.ORCHESTRATOR,),
    (Entity.GROUP, GroupState.TAKEN): (ProcessRole.TRAINER,),
    (Entity.GROUP, GroupState.TRAINED): (ProcessRole.TRAINER,),
    (Entity.BATCH, BatchState.OPEN): (ProcessRole.TRAINER,),
    (Entity.BATCH, BatchState.CLOSED): (ProcessRole.TRAINER,),
    (Entity.BATCH, BatchState.COMMITTED): (ProcessRole.TRAINER,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkInFlight:
    """Work in flight at one moment: rollouts by state, completions at the proxy, batches that are not committed."""

    running: int
    verifying: int
    unfinished: int
    batches: int
    completions: int
    run: str

    def of(self, victim: str) -> bool:
        """Whether `victim` is working on some of it."""
        match victim:
            case ProcessRole.GATEWAY | ProcessRole.ROLLOUT_SERVER:
                return self.completions > 0
            case ProcessRole.RUNNER | "sandbox" | "harness":
                return self.running > 0
            case ProcessRole.VERIFIER:
                return self.verifying > 0
            case ProcessRole.TRAINER:
                return self.batches > 0
            case _:
                return self.unfinished > 0


@dataclass(slots=True, kw_only=True)
class Watch:
    """`commits` counts the commits seen since the start. Progress is in Unix seconds; times from the database use its clock."""

    engine: AsyncEngine
    run_id: int
    proxy: Proxy
    ledger: Ledger
    last: int = 0
    commits: int = 0
    seen: dict[str, float] = field(default_factory=dict)
    answered_at: float = 0.0
    _answers: int = 0

    async def run(self) -> None:
        """Poll until cancelled."""
        self.last = int((await self._rows("select coalesce(max(transition_id), 0) from transitions"))[0][0])
        while True:
            try:
                for row in await self._rows(NEW, last=self.last):
                    self.last = row.transition_id
                    self.commits += (row.kind, row.to_state) == (Entity.BATCH, BatchState.COMMITTED)
                    for component in (*DOERS.get((row.kind, row.to_state), ()), "postgres"):
                        self.seen[component] = max(row.at, self.seen.get(component, 0.0))
            except AWAY:
                await anyio.sleep(POLL_INTERVAL_S)
            if self.ledger.answers > self._answers:
                self._answers, self.answered_at = self.ledger.answers, time.time()
            await anyio.sleep(POLL_INTERVAL_S)

    def progress(self, component: str, since: float) -> float | None:
        """When the component made progress after `since`; None: not yet. A rollout server's completion must also be requested after `since`."""
        match component:
            case ProcessRole.GATEWAY:
                at = self.proxy.began
            case ProcessRole.ROLLOUT_SERVER:
                started, delivered = self.proxy.delivered
                at = delivered if started > since else 0.0
            case "harness":
                at = self.answered_at
            case _:
                at = self.seen.get("runner" if component == "sandbox" else component, 0.0)
        return at if at > since else None

    async def work(self) -> WorkInFlight | None:
        """The work in flight now; None while Postgres does not answer."""
        try:
            [row] = await self._rows(WORK)
        except AWAY:
            return None
        return WorkInFlight(
            running=row.running,
            verifying=row.verifying,
            unfinished=row.unfinished,
            batches=row.batches,
            completions=self.proxy.in_flight,
            run=row.run,
        )

    async def _rows(self, statement: str, **more: Any) -> Any:
        with anyio.move_on_after(ANSWER_S) as limit:
            async with self.engine.connect() as connection:
                found = await connection.execute(text(statement), {"run": self.run_id, **more})
                return found.all()
        assert limit.cancelled_caught
        raise TimeoutError("Postgres does not answer")  # an OSError
