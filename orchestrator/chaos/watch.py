"""What is moving: read from the history in the data pool, and from what the proxy and the ledger see.

| produces | waits for | unblocked by |
|---|---|---|
| when each component last made progress | new rows of `transitions` | any process at work |

It reads, over a connection of its own that no relay stands on; while Postgres is away it knows nothing new.
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

from orchestrator.chaos.ledger import Ledger
from orchestrator.chaos.proxy import Proxy

AWAY: Final = (OSError, PoolTimeout, DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError)
LOOK_S = 0.05
ANSWER_S = 5.0
NEW = """select transition_id, kind, from_state, to_state, extract(epoch from at)::float8 as at from transitions
 where run_id = :run and transition_id > :last order by 1 limit 2000"""
WORK = """select (select count(*) from rollouts where run_id = :run and state = 'running') as running,
       (select count(*) from rollouts where run_id = :run and state in ('finished', 'verifying')) as verifying,
       (select count(*) from rollouts where run_id = :run and state not in ('waiting', 'verified', 'lost')) as unfinished,
       (select count(*) from batches where run_id = :run and state in ('open', 'closed')) as batches,
       (select state from runs where run_id = :run) as run"""

# Whose doing a change of state is.
DOERS: Final = {
    ("rollout", "running"): ("runner",),
    ("rollout", "verifying"): ("verifier",),
    ("rollout", "reported"): ("orchestrator", "nats"),
    ("rollout", "finished"): ("orchestrator",),
    ("rollout", "verified"): ("orchestrator", "nats"),
    ("rollout", "queued"): ("orchestrator",),
    ("group", "dispatched"): ("orchestrator",),
    ("group", "ready"): ("orchestrator",),
    ("group", "taken"): ("trainer",),
    ("group", "trained"): ("trainer",),
    ("batch", "open"): ("trainer",),
    ("batch", "closed"): ("trainer",),
    ("batch", "committed"): ("trainer",),
}


@dataclass(frozen=True, slots=True)
class Work:
    """What is under way at one moment: rollouts by where they are, completions at the proxy, batches that are not committed."""

    running: int
    verifying: int
    unfinished: int
    batches: int
    completions: int
    run: str

    def of(self, victim: str) -> bool:
        """Whether `victim` has some of it in its hands."""
        match victim:
            case "gateway" | "rollout-server":
                return self.completions > 0
            case "runner" | "sandbox" | "harness":
                return self.running > 0
            case "verifier":
                return self.verifying > 0
            case "trainer":
                return self.batches > 0
            case _:
                return self.unfinished > 0


@dataclass(slots=True)
class Watch:
    """`commits` counts those that were seen since the start. Progress is Unix seconds, by the database's clock where it comes from there."""

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
        """Look until cancelled."""
        self.last = int((await self._rows("select coalesce(max(transition_id), 0) from transitions"))[0][0])
        while True:
            try:
                for row in await self._rows(NEW, last=self.last):
                    self.last = row.transition_id
                    self.commits += (row.kind, row.to_state) == ("batch", "committed")
                    for component in (*DOERS.get((row.kind, row.to_state), ()), "postgres"):
                        self.seen[component] = max(row.at, self.seen.get(component, 0.0))
            except AWAY:
                await anyio.sleep(LOOK_S)
            if self.ledger.answers > self._answers:
                self._answers, self.answered_at = self.ledger.answers, time.time()
            await anyio.sleep(LOOK_S)

    def progress(self, component: str, since: float) -> float | None:
        """When it has done something new after `since`; None: not yet. A completion counts that was asked for after that, too."""
        match component:
            case "gateway":
                at = self.proxy.began
            case "rollout-server":
                began, delivered = self.proxy.delivered
                at = delivered if began > since else 0.0
            case "harness":
                at = self.answered_at
            case _:
                at = self.seen.get("runner" if component == "sandbox" else component, 0.0)
        return at if at > since else None

    async def work(self) -> Work | None:
        """What is under way now; None while Postgres does not say."""
        try:
            [row] = await self._rows(WORK)
        except AWAY:
            return None
        return Work(row.running, row.verifying, row.unfinished, row.batches, self.proxy.in_flight, row.run)

    async def _rows(self, statement: str, **more: Any) -> Any:
        with anyio.move_on_after(ANSWER_S) as limit:
            async with self.engine.connect() as connection:
                found = await connection.execute(text(statement), {"run": self.run_id, **more})
                return found.all()
        assert limit.cancelled_caught
        raise TimeoutError("Postgres does not answer")  # an OSError
