"""An outsider's view of a run: the bus as any client, the data pool as a reader, and a ledger of submissions kept here."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.deploy.home import Home
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import get_run
from orchestrator.pool.transact import transact
from orchestrator.publish import publish_tasks
from orchestrator.tasks.harbor import Task
from tests import violations
from tests.e2e.stack_rig import until

PATIENCE_S = 150.0  # a machine may be busy with other things


def a_task(number: int, seconds: float = 0.0) -> Task:
    """A task whose reward is luck, so that every group has something to learn from under any policy. The run must compare performance alone
    (`reward.zero_signal`): what speed and process pay may make up for a small difference of it."""
    test = f"sleep {seconds}; mkdir -p /logs/verifier; printf '0.%05d' $RANDOM > /logs/verifier/reward.txt\n"
    return Task.from_files(
        {
            "task.toml": b'[metadata]\ndomain = "general"\n',
            "instruction.md": f"Say {number}.".encode(),
            "tests/test.sh": test.encode(),
        }
    )


@dataclass(slots=True, kw_only=True)
class Observer:
    """A client of one run. Its queries wait while Postgres is away."""

    run: str
    run_id: int
    bus: Bus
    engine: AsyncEngine
    ledger: list[str] = field(default_factory=list)

    async def publish(self, count: int, *, seconds: float = 0.0) -> None:
        """Write `count` new submissions into the ledger, publish them, and wait until each is accepted."""
        events = []
        for number in range(len(self.ledger), len(self.ledger) + count):
            event = TaskSubmitted(task=a_task(number, seconds).to_message(), submission=f"task:{number:04d}")
            events.append(("general", event))
            self.ledger.append(f"task:{number:04d}")
        answers = await publish_tasks(self.bus, self.run, events, timeout_s=PATIENCE_S)
        statuses = {status for status, _ in answers.values()}
        assert (len(answers), statuses) == (count, {"accepted"}), answers

    async def rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        async def read(connection: AsyncConnection) -> Sequence[Any]:
            return (await connection.execute(text(statement), {"run": self.run_id, **parameters})).all()

        return await transact(self.engine, read, at="tests")

    async def value(self, statement: str, **parameters: Any) -> Any:
        return (await self.rows(statement, **parameters))[0][0]

    async def batches(self) -> int:
        """The number of committed batches."""
        return int(
            await self.value("select count(*) from batches where run_id = :run and state = 'committed'")
        )

    async def until_at_work(self, process: str) -> None:
        """Wait until rollouts are in flight, and leased by `process` if it leases rollouts."""
        states = {"runner": "= 'running'", "verifier": "= 'verifying'"}
        wanted = states.get(process, "not in ('waiting', 'verified', 'lost')")

        async def busy() -> bool:
            query = f"select count(*) > 0 from rollouts where run_id = :run and state {wanted}"
            return bool(await self.value(query))

        await until(busy, f"{process} is at work", PATIENCE_S)

    async def until_batches(self, wanted: int, patience_s: float = PATIENCE_S) -> None:
        async def enough() -> bool:
            return await self.batches() >= wanted

        await until(enough, f"{wanted} batches are committed", patience_s)

    async def until_ended(self, patience_s: float = PATIENCE_S) -> None:
        async def ended() -> bool:
            return bool(await self.value("select state = 'ended' from runs where run_id = :run"))

        await until(ended, "the run has ended", patience_s)

    async def until_published(self, version: int) -> None:
        async def published() -> bool:
            query = "select count(*) > 0 from policy_versions where run_id = :run and version >= :version"
            return bool(await self.value(query, version=version))

        await until(published, f"version {version} is published", PATIENCE_S)

    async def until_served(self, version: int) -> None:
        async def served() -> bool:
            return bool(
                await self.value(
                    "select count(*) from rollout_servers where run_id = :run and state = 'ready' and version = :version",
                    version=version,
                )
            )

        await until(served, f"version {version} is served", PATIENCE_S)

    async def until_leased(self) -> None:
        """Wait until a gateway has a lease of every rollout server: after a start, as soon as the servers answer."""

        async def leased() -> bool:
            without = "select count(*) from rollout_servers where run_id = :run and lease_until < now()"
            return bool(await self.value(without) == 0)

        await until(leased, "every rollout server is leased", PATIENCE_S)

    async def until_given_back(self) -> None:
        """Wait until work that a stopping worker gave back is taken back."""

        async def taken_back() -> bool:
            reason = "'% gave it back before it was done%'"
            return bool(
                await self.value(
                    f"select count(*) > 0 from transitions where run_id = :run and reason like {reason}"
                )
            )

        await until(taken_back, "a lease was given back", PATIENCE_S)

    async def nothing_lost(self) -> None:
        """Every submission of the ledger is in a terminal state, and no group was trained twice. Raises Violation with the evidence."""
        await transact(
            self.engine,
            lambda connection: violations.nothing_lost(connection, self.run_id, self.ledger),
            at="tests",
        )


@asynccontextmanager
async def observing(home: Home, ledger: Sequence[str] = ()) -> AsyncIterator[Observer]:
    """Connect to the run in `home`, which is up."""
    config = home.connected()
    async with (
        open_engine(config.services.database_url, Role.READER, size=1, name="observer") as engine,
        NatsBus.connect(config.services.nats_url, name="observer") as bus,
    ):
        run = await transact(engine, lambda connection: get_run(connection, config.run.name), at="tests")
        yield Observer(run=run.name, run_id=run.run_id, bus=bus, engine=engine, ledger=list(ledger))
