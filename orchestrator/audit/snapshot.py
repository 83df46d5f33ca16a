"""What an audit looks at: one read-only snapshot of the data pool, and what the caller knows of the world outside of it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.config import Config
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import (
    BATCH_TRANSITIONS,
    GROUP_TERMINAL,
    GROUP_TRANSITIONS,
    ROLLOUT_TRANSITIONS,
    BatchState,
    FilterReason,
    GroupState,
    RolloutState,
)
from orchestrator.pool.runs import get_run

RECONNECTS = 2  # tries of a transaction: by then whoever waited for Postgres has found it again


@dataclass(frozen=True, slots=True)
class Outside:
    """What the database does not say. None = not known, so whatever depends on it is skipped, and the check says so.

    `policies` holds one directory per run; `ledger` are submission ids that somebody outside wrote down; `alive` are the processes
    of the run that live and have had the time to look around (orchestrator, gateway, …); `sandboxes` is the directory where this
    machine's providers keep them, and `workers` how the names of the run's workers begin, for others may work beside them. `sample`:
    look into the bytes of so many rollouts, chosen at random, instead of all. `witness` is a directory in which others wrote down what was
    generated and received (`audit.witness`).
    """

    policies: Path | None = None
    ledger: Sequence[str] | None = None
    alive: frozenset[str] | None = None
    sandboxes: Path | None = None
    sample: int | None = None
    witness: Path | None = None
    workers: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One repeatable-read transaction that cannot write. `engine` is for what must be asked anew: whether a version is still needed."""

    engine: AsyncEngine
    connection: AsyncConnection
    run_id: int
    run: str
    state: str
    config: Config
    outside: Outside
    pruned: str  # why trajectories are not looked into; empty: they are

    @property
    def ended(self) -> bool:
        return self.state == "ended"

    def lives(self, process: str) -> bool:
        """Whether a process of the run is known to live."""
        return self.outside.alive is not None and process in self.outside.alive

    async def rows(self, statement: str, **more: Any) -> Sequence[Any]:
        """All rows of a statement; it may name any of `parameters`."""
        result = await self.connection.execute(text(statement), self.chosen(statement, more))
        return result.all()

    def chosen(self, statement: str, more: dict[str, Any]) -> dict[str, Any]:
        """Those parameters that a statement names."""
        known = self.parameters | more
        return {name: value for name, value in known.items() if f":{name}" in statement}

    @property
    def parameters(self) -> dict[str, Any]:
        """What statements may name, by distinct names none of which begins another."""
        return {
            "run": self.run_id,
            "ledger": list(dict.fromkeys(self.outside.ledger or ())),
            # Evaluations may be submitted to a run that has ended, as long as somebody is there to work on them.
            "everybody": not self.lives("orchestrator"),
            "final": [str(state) for state in GROUP_TERMINAL],
            "filters": [str(reason) for reason in FilterReason],
            "moves": _moves(),
            "ttl": self.config.rollout.lease_ttl_s,
            "server_ttl": self.config.servers.lease_ttl_s,
            "arrival": self.config.clock.arrival_s,
            "reconnect": RECONNECTS * self.config.clock.pool_retry_s,
        }


def _moves() -> list[str]:
    """Every change of state that the tables of `contracts.states` list, as kind:from>to; births come from nothing."""
    tables: dict[str, Any] = {
        "group": GROUP_TRANSITIONS,
        "rollout": ROLLOUT_TRANSITIONS,
        "batch": BATCH_TRANSITIONS,
        "run": {"active": ("ending",), "ending": ("ended",)},
    }
    births = {
        "group": GroupState.ACCEPTED,
        "rollout": RolloutState.WAITING,
        "batch": BatchState.OPEN,
        "run": "active",
    }
    listed = [
        f"{kind}:{before}>{after}"
        for kind, table in tables.items()
        for before, afters in table.items()
        for after in afters
    ]
    gone = ("message:>dropped", "message:>retried")  # dead messages, by a person
    return [*listed, *(f"{kind}:>{state}" for kind, state in births.items()), *gone]


@asynccontextmanager
async def take_snapshot(engine: AsyncEngine, run: str, outside: Outside) -> AsyncIterator[Snapshot]:
    """Open the snapshot. Raises ConfigurationError when there is no such run, or nothing to sample."""
    if outside.sample is not None and outside.sample < 1:
        raise ConfigurationError(f"a sample has at least 1 rollout, not {outside.sample}")
    async with engine.connect() as plain:
        connection = await plain.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        async with connection.begin():
            found = await get_run(connection, run)
            yield Snapshot(
                engine,
                connection,
                found.run_id,
                found.name,
                found.state,
                Config.from_json(found.config),
                outside,
                f"pruned on {found.pruned:%Y-%m-%d %H:%M}: its steps, routes, messages and prompts are dropped"
                if found.pruned is not None
                else "",
            )
