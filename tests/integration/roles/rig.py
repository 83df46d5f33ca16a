"""The orchestrator's roles on a real bus: each stage has its own streams on the shared server, and a test plays the runners itself."""

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import msgspec
import nats
from nats.js.errors import NotFoundError
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, Outgoing
from orchestrator.bus.nats import NatsBus
from orchestrator.bus.pull import Timing
from orchestrator.contracts.events import (
    Event,
    RolloutAssigned,
    RolloutFinished,
    StepRecorded,
    TaskSubmitted,
    VerdictReached,
    VerifyAssigned,
    decode,
    encode,
)
from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.pool import leases, tables
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.transact import transact
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dispatcher import dispatch, dispatcher
from orchestrator.roles.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.roles.intake import Intake
from orchestrator.roles.relay import relay
from orchestrator.settings.config import Config
from tests import builders
from tests.integration.pool.rig import OWNER, counter, ended, rollout_row
from tests.waiting import eventually

TIMING = Timing(expires_s=2.0, heartbeat_s=0.5, poll_interval_s=0.2)
STREAMS = tuple(replace(stream, max_bytes=2 << 20) for stream in subjects.STREAMS)
TASK: dict[str, Any] = {
    "files": {"task.toml": "", "instruction.md": "Say 7.", "tests/test.sh": "exit 0\n"},
}
AUTHOR = builders.Author(turns=1)
Role = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One run, its orchestrator's context, and a bus whose streams are its own."""

    context: OrchestratorContext
    run: StoredRun
    bus: Bus
    prefix: str
    url: str

    def connect(self) -> AbstractAsyncContextManager[Bus]:
        """Another connection, as another process has."""
        return connected(self.url, self.prefix)

    async def wipe(self, stream: str) -> None:
        """Delete a stream without notice to any process."""
        client = await nats.connect(self.url)
        try:
            await client.jetstream().delete_stream(f"{self.prefix.upper()}_{stream}")
        finally:
            await client.close()

    def core(self) -> list[Role]:
        """The roles from intake to verdicts."""
        context = self.context
        roles = (dispatcher, relay, ingest_steps, ingest_results, ingest_verdicts)
        return [Intake(context, ["shell"]).run, *(partial(role, context) for role in roles)]

    async def send(self, subject: str, event: Event, msg_id: str = "") -> None:
        await self.bus.publish(
            Outgoing(
                subject=subject,
                msg_id=msg_id or secrets.token_hex(6),
                schema=event.schema(),
                body=encode(event),
            )
        )

    async def submit(self, *submissions: str, domain: str = "coding", **changes: object) -> None:
        """Publish task messages, each under a new message id."""
        for submission in submissions:
            event = msgspec.structs.replace(TaskSubmitted(task=TASK, submission=submission), **changes)
            await self.send(subjects.tasks(self.run.name, domain), event)

    async def serves(self, *versions: int) -> None:
        """These policy versions are published."""
        async with self.context.engine.begin() as connection:
            row = {"run_id": self.run.run_id, "path": "/nowhere", "manifest_sha": "00"}
            await connection.execute(
                tables.policy_versions.insert(), [row | {"version": each} for each in versions]
            )

    async def count(self, table: str, **values: object) -> int:
        """Rows of this run's `table` with these values."""
        found = tables.metadata.tables[table]
        query = select(func.count()).select_from(found)
        if "run_id" in found.c:
            query = query.where(found.c.run_id == self.run.run_id)
        for column, value in values.items():
            query = query.where(found.c[column] == value)
        async with self.context.engine.connect() as connection:
            return int(await connection.scalar(query) or 0)

    async def reaches(self, n: int, table: str, **values: object) -> None:
        """Wait until this many rows are there."""

        async def there() -> bool:
            return await self.count(table, **values) == n

        await until(there)

    async def emptied(self, stream: str) -> None:
        """Wait until every message of a work queue is settled."""
        client = await nats.connect(self.url)
        try:

            async def there() -> bool:
                info = await client.jetstream().stream_info(f"{self.prefix.upper()}_{stream}")
                return int(info.state.messages) == 0

            await until(there)
        finally:
            await client.close()

    async def reasons(self) -> list[str]:
        """The reasons of dead letters."""
        query = select(tables.dead_letters.c.reason).order_by(tables.dead_letters.c.dead_letter_id)
        async with self.context.engine.connect() as connection:
            return list((await connection.scalars(query)).all())


@asynccontextmanager
async def connected(url: str, prefix: str) -> AsyncIterator[Bus]:
    async with NatsBus.connect(url, name="test", prefix=prefix, timing=TIMING, streams=STREAMS) as bus:
        yield bus


@asynccontextmanager
async def staged(engine: AsyncEngine, url: str, **sections: dict[str, object]) -> AsyncIterator[Stage]:
    """P = 2, G = 2, N = 4, S = 1, no waiting before retries; `sections` change the configuration."""
    name = f"r{secrets.token_hex(4)}"
    raw: dict[str, dict[str, object]] = {
        "run": {"name": name},
        "queue": {"batch_groups": 2, "group_size": 2, "capacity": 4, "max_staleness": 1},
        "rollout": {"slots": 8, "retry_delay_s": 0.0},
    }
    for section, values in sections.items():
        raw[section] = {**raw.get(section, {}), **values}
    run = await builders.make_run(engine, Config.model_validate(raw))
    async with connected(url, name) as bus:
        await bus.ensure_streams()
        context = OrchestratorContext(
            run_id=run.run_id, run=run.name, config=Config.from_json(run.config), engine=engine, bus=bus
        )
        try:
            yield Stage(context=context, run=run, bus=bus, prefix=name, url=url)
        finally:
            client = await nats.connect(url)
            try:
                for stream in STREAMS:
                    # The test may have wiped it, and end before anybody makes it again.
                    with suppress(NotFoundError):
                        await client.jetstream().delete_stream(f"{name.upper()}_{stream.name}")
            finally:
                await client.close()


@asynccontextmanager
async def playing(roles: Sequence[Role]) -> AsyncIterator[None]:
    """Run roles while the context is open; a role that ends with an error ends the test."""
    async with anyio.create_task_group() as group:
        for role in roles:
            group.start_soon(role)
        yield
        group.cancel_scope.cancel()


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 120.0) -> None:
    """Poll until it holds."""
    await eventually(condition, within_s=timeout_s, every_s=0.03)


class Runners:
    """A runner and a verifier runner as the bus sees them. Messages go out in any order, some of them twice."""

    def __init__(
        self,
        stage: Stage,
        seed: int = 0,
        *,
        pool: str = subjects.POOL_DEFAULT,
        author: builders.Author = AUTHOR,
    ) -> None:
        self._stage = stage
        self._pool = pool
        self._author = author
        self._dice = random.Random(seed)
        self.results: list[RolloutFinished] = []

    def roles(self) -> list[Role]:
        return [self.run_rollouts, self.run_verifications]

    async def run_rollouts(self) -> None:
        """Lease each assigned rollout, record steps, report how it ended."""
        stage = self._stage
        async with stage.bus.subscribe(
            subjects.consume_work_rollout(stage.run.name, self._pool), batch=8
        ) as arriving:
            async for delivery in arriving:
                event = decode(delivery.body, delivery.schema, RolloutAssigned)
                lease = await self._lease(event.rollout, event.epoch, RolloutState.QUEUED)
                await delivery.ack()
                if lease is not None:
                    await self._play(lease)

    async def _play(self, lease: Lease) -> None:
        stage = self._stage
        steps: list[StepRecorded] = self._author.trajectory(lease, stage.run.name, self._author.ids(4, 6))
        result = self.ended(lease, steps)
        self.results.append(result)
        rollout, epoch = lease.rollout_id, lease.epoch
        mail: list[tuple[str, Event, str]] = [
            (subjects.steps(stage.run.name, str(rollout)), step, f"{rollout}:{epoch}:{step.idx}:step")
            for step in steps
        ]
        mail.append((subjects.results_rollout(stage.run.name), result, f"{rollout}:{epoch}:0:result"))
        mail += [(subject, event, "") for subject, event, _ in self._dice.choices(mail, k=2)]
        self._dice.shuffle(mail)
        for subject, event, msg_id in mail:
            await stage.send(subject, event, msg_id)

    def ended(self, lease: Lease, steps: list[StepRecorded]) -> RolloutFinished:
        """The result of an attempt."""
        return ended(self._stage.run.name, lease, steps)

    def reward(self, lease: Lease) -> float:
        """Members of a group are rewarded 1, 0, 1, 0, …"""
        return float((lease.member + 1) % 2)

    async def run_verifications(self) -> None:
        """Lease each verification, and report its reward."""
        stage = self._stage
        async with stage.bus.subscribe(
            subjects.consume_work_verify(stage.run.name, self._pool), batch=8
        ) as arriving:
            async for delivery in arriving:
                event = decode(delivery.body, delivery.schema, VerifyAssigned)
                lease = await self._lease(event.rollout, event.epoch, RolloutState.FINISHED)
                await delivery.ack()
                if lease is None:
                    continue
                verdict = VerdictReached(
                    run=stage.run.name,
                    rollout=lease.rollout_id,
                    attempt=lease.attempt,
                    epoch=lease.epoch,
                    failure_class=FailureClass.COMPLETED,
                    reward=self.reward(lease),
                )
                for _ in range(2):
                    await stage.send(subjects.results_verdict(stage.run.name), verdict)

    async def _lease(self, rollout: int, epoch: int, before: RolloutState) -> Lease | None:
        return await transact(
            self._stage.context.engine,
            lambda connection: leases.lease(
                connection, self._stage.run.run_id, rollout, epoch, OWNER, 60.0, before=before
            ),
            at="tests",
        )


EVERYTHING = """SELECT (SELECT string_agg(t::text, ';' ORDER BY rollout_id) FROM rollouts t),
    (SELECT string_agg(t::text, ';' ORDER BY rollout_id, attempt) FROM attempts t), (SELECT string_agg(t::text, ';') FROM groups t),
    (SELECT count(*) FROM steps), (SELECT count(*) FROM verdicts), (SELECT count(*) FROM rewards), (SELECT count(*) FROM artifacts),
    (SELECT count(*) FROM step_marks), (SELECT count(*) FROM tool_calls), (SELECT count(*) FROM transitions),
    (SELECT count(*) FROM batches), (SELECT string_agg(t::text, ';') FROM queue t)"""


async def everything(stage: Stage) -> Any:
    """All rows that a result or a verdict could change."""
    async with stage.context.engine.connect() as connection:
        return (await connection.execute(text(EVERYTHING))).one()


async def has_state(stage: Stage, rollout_id: int, state: str) -> bool:
    """Whether the rollout is in this state."""
    return bool((await rollout_row(stage.context.engine, rollout_id)).state == state)


async def has_counted(stage: Stage, name: str, n: int) -> bool:
    """Whether the run has counted that so often."""
    return await counter(stage.context.engine, stage.run, name) == n


async def dispatched(stage: Stage, *, domain: str | None = None) -> int:
    """How many groups are dispatched after one more look at the queue, in all or of `domain`."""
    groups = tables.groups.c
    query = select(func.count()).where(groups.run_id == stage.run.run_id, groups.state == "dispatched")
    async with stage.context.engine.begin() as connection:
        await dispatch(connection, stage.context)
        return int(await connection.scalar(query.where(groups.domain == domain) if domain else query) or 0)
