"""Input of an audit: one read-only snapshot of the data pool, and the caller's facts about the outside."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.states import (
    BATCH_TRANSITIONS,
    GROUP_TERMINAL,
    GROUP_TRANSITIONS,
    ROLLOUT_TRANSITIONS,
    BatchState,
    Entity,
    FilterReason,
    GroupState,
    RolloutState,
    RunState,
)
from orchestrator.pool.runs import get_run
from orchestrator.settings.config import Config, effective

RECONNECTS = 2  # tries of a transaction: by then every process that waited for Postgres has reconnected


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Facts that are not in the database. None = not known: checks that depend on it are skipped, and report that.

    `policies` holds one directory per run; `ledger`: submission ids that an outside party recorded; `alive`: the processes of the run that are
    alive and have had time to clean up (orchestrator, gateway, …); `sandboxes` is the directory where this machine's providers keep them, and
    `workers` the prefix of the names of the run's workers, since other workers may share it. `sample`: check the bytes of this many rollouts,
    chosen at random, instead of all. `witness` is a directory with an outside record of generated and received messages (`audit.i3_external_record`).
    """

    policies: Path | None = None
    ledger: Sequence[str] | None = None
    alive: frozenset[str] | None = None
    sandboxes: Path | None = None
    sample: int | None = None
    witness: Path | None = None
    workers: str = ""
    own: Config | None = None  # the file's, for process settings; None: as stored with the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One repeatable-read transaction that cannot write. `engine`: for a query outside the snapshot, whether a version is still needed."""

    engine: AsyncEngine
    connection: AsyncConnection
    run_id: int
    run: str
    state: RunState
    config: Config
    outside: Outside
    pruned: str | None  # why trajectories are not examined; None: they are

    @property
    def ended(self) -> bool:
        return self.state is RunState.ENDED

    def lives(self, process: str) -> bool:
        """Whether a process of the run is known to be alive."""
        return self.outside.alive is not None and process in self.outside.alive

    async def rows(self, statement: str, **more: Any) -> Sequence[Any]:
        """All rows of a statement; it may name any of `parameters`."""
        result = await self.connection.execute(text(statement), self.chosen(statement, more))
        return result.all()

    def chosen(self, statement: str, more: dict[str, Any]) -> dict[str, Any]:
        """The parameters that a statement names."""
        known = self.parameters | more
        return {name: value for name, value in known.items() if f":{name}" in statement}

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters for statements, by distinct names; no name is a prefix of another."""
        return {
            "run": self.run_id,
            "ledger": list(dict.fromkeys(self.outside.ledger or ())),
            # Evaluations may be submitted to a run that has ended, as long as an orchestrator works on them.
            "all_groups": not self.lives(ProcessRole.ORCHESTRATOR),
            "final": [str(state) for state in GROUP_TERMINAL],
            "filters": [str(reason) for reason in FilterReason],
            "moves": _moves(),
            "ttl": self.config.rollout.lease_ttl_s,
            "server_ttl": self.config.servers.lease_ttl_s,
            "arrival": self.config.timeouts.arrival_s,
            "reconnect": RECONNECTS * self.config.timeouts.pool_retry_s,
        }


def _moves() -> list[str]:
    """Every state change in the tables of `contracts.states`, as kind:from>to; creations have an empty from."""
    tables: dict[Entity, Any] = {
        Entity.GROUP: GROUP_TRANSITIONS,
        Entity.ROLLOUT: ROLLOUT_TRANSITIONS,
        Entity.BATCH: BATCH_TRANSITIONS,
        Entity.RUN: {RunState.ACTIVE: (RunState.ENDING,), RunState.ENDING: (RunState.ENDED,)},
    }
    initial_states = {
        Entity.GROUP: GroupState.ACCEPTED,
        Entity.ROLLOUT: RolloutState.WAITING,
        Entity.BATCH: BatchState.OPEN,
        Entity.RUN: RunState.ACTIVE,
    }
    listed = [
        f"{kind}:{before}>{after}"
        for kind, table in tables.items()
        for before, afters in table.items()
        for after in afters
    ]
    by_person = ("message:>dropped", "message:>retried")  # dead messages, by a person
    return [*listed, *(f"{kind}:>{state}" for kind, state in initial_states.items()), *by_person]


@asynccontextmanager
async def take_snapshot(engine: AsyncEngine, run: str, outside: Outside) -> AsyncIterator[Snapshot]:
    """Open the snapshot. Raises ConfigurationError if the run does not exist, or the sample is empty."""
    if outside.sample is not None and outside.sample < 1:
        raise ConfigurationError(f"a sample has at least 1 rollout, not {outside.sample}")
    async with engine.connect() as plain:
        connection = await plain.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        async with connection.begin():
            found = await get_run(connection, run)
            yield Snapshot(
                engine=engine,
                connection=connection,
                run_id=found.run_id,
                run=found.name,
                state=found.state,
                config=Config.from_json(found.config)
                if outside.own is None
                else effective(found.config, outside.own),
                outside=outside,
                pruned=f"pruned on {found.pruned:%Y-%m-%d %H:%M}: its steps, routes, messages and prompts are dropped"
                if found.pruned is not None
                else None,
            )
