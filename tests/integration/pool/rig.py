"""Shared by the tests of the data pool: an engine on the test's database, random trees of steps, and a row in every table."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Row, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.events import RolloutFinished, StepRecorded, VerdictReached
from orchestrator.contracts.ids import (
    NO_PARENT,
    Ids,
    b64,
    chain_sha,
    ids_to_bytes,
    logprobs_to_bytes,
    prompt_sha,
    row_sha,
    sha256,
    trajectory_digest,
    unb64,
)
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import VersionSpan, flat
from orchestrator.contracts.states import FailureClass, GroupState, Purpose, RolloutState, StepKind
from orchestrator.pool import batches, leases, results, tables
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.ingest import Fate, decode_step, ingest
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.steps import canonical
from orchestrator.pool.transitions import lock_run
from orchestrator.roles.complete import complete_reported
from orchestrator.roles.conclude import conclude_group
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.retry_policy import verify_again
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from tests import builders
from tests.memory_bus import MemoryBus

OWNER = "test"


@dataclass(frozen=True, slots=True)
class Grown:
    """One step of a random tree: the message and the result of folding it."""

    event: StepRecorded
    full: Ids
    logprobs: np.ndarray


@dataclass(slots=True)
class Tree:
    """Random attempts: roots with and without a prompt, continuations, rewrites of any earlier step, actions of several versions."""

    seed: int
    vocab: int = 150_000
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def grow(self, run: str, lease: Lease, steps: int) -> list[Grown]:
        grown: list[Grown] = []
        while len(grown) < steps:
            grown.append(self._step(run, lease, grown))
        return grown

    def _ids(self, low: int, high: int) -> Ids:
        n = self.dice.randint(low, high)
        return np.array([self.dice.randrange(self.vocab) for _ in range(n)], dtype=np.int32)

    def _step(self, run: str, lease: Lease, grown: list[Grown]) -> Grown:
        idx = len(grown)
        kind = self.dice.choice(list(StepKind)) if grown else StepKind.ROOT
        above = self.dice.choice(grown) if kind is not StepKind.ROOT else None
        prompt = None if above or self.dice.random() < 0.2 else self._ids(1, 40)
        base = above.full if above else prompt if prompt is not None else self._ids(0, 0)
        keep = len(base) if kind is StepKind.CONTINUES else self.dice.randint(0, len(base))
        delta, action = self._ids(0 if keep else 1, 12), self._ids(1, 20)
        logprobs = -np.array([self.dice.expovariate(1.0) for _ in action], dtype=np.float32)
        cut = self.dice.randint(0, len(action))
        spans = [
            span
            for span in (VersionSpan(3, 0, cut), VersionSpan(4, cut, len(action)))
            if span.end > span.start
        ]
        raw_prompt = ids_to_bytes(prompt) if prompt is not None else None
        chain = chain_sha(
            bytes.fromhex(above.event.chain_sha)
            if above
            else prompt_sha(raw_prompt)
            if raw_prompt
            else NO_PARENT,
            keep,
            ids_to_bytes(delta),
            ids_to_bytes(action),
        )
        sampling = {"temperature": self.dice.choice([1.0, 0.7]), "top_p": 1.0, "top_k": -1}
        full = np.concatenate([base[:keep], delta, action]).astype(np.int32)
        event = StepRecorded(
            run=run,
            rollout=lease.rollout_id,
            attempt=lease.attempt,
            epoch=lease.epoch,
            idx=idx,
            kind=kind,
            parent=above.event.idx if above else None,
            root=above.event.root if above else idx,
            keep_len=keep,
            state_len=keep + len(delta),
            full_len=len(full),
            delta=b64(ids_to_bytes(delta)),
            action=b64(ids_to_bytes(action)),
            logprobs=b64(logprobs_to_bytes(logprobs)),
            spans=spans,
            chain_sha=chain.hex(),
            row_sha=row_sha(chain, logprobs_to_bytes(logprobs), flat(spans), canonical(sampling)).hex(),
            sampling=sampling,
            finish=Finish.STOP,
            parse=ParseStatus.OK,
            prompt=b64(raw_prompt) if raw_prompt else None,
            prompt_sha=prompt_sha(raw_prompt).hex() if raw_prompt else None,
            appended=[{"role": "user", "content": f"turn {idx}"}],
            reply={"content": f"reply {idx}"},
        )
        return Grown(event, full, logprobs)


def resealed(event: StepRecorded, **changes: object) -> StepRecorded:
    """`event` with other content and the row digest that belongs to it."""
    changed = msgspec.structs.replace(event, **changes)
    digest = row_sha(
        bytes.fromhex(changed.chain_sha),
        unb64(changed.logprobs),
        flat(changed.spans),
        canonical(changed.sampling),
    )
    return msgspec.structs.replace(changed, row_sha=digest.hex())


async def running(engine: AsyncEngine, run: StoredRun, members: int = 2, name: str = "task") -> list[Lease]:
    """A dispatched training group whose rollouts are all leased by `OWNER`."""
    [group_id] = await builders.accepted(engine, run, [name], size=members)
    await builders.dispatch(engine, run)
    async with engine.begin() as connection:
        return [
            lease for id in await rollouts_of(connection, group_id) if (lease := await take(connection, id))
        ]


async def take(connection: AsyncConnection, rollout_id: int, ttl_s: float = 60.0) -> Lease | None:
    """The first lease of a rollout."""
    run_id = await connection.scalar(
        select(tables.rollouts.c.run_id).where(tables.rollouts.c.rollout_id == rollout_id)
    )
    return await leases.lease(connection, run_id or 0, rollout_id, 1, OWNER, ttl_s)


async def rollouts_of(connection: AsyncConnection, group_id: int) -> list[int]:
    query = select(tables.rollouts.c.rollout_id).where(tables.rollouts.c.group_id == group_id)
    return list((await connection.scalars(query.order_by(tables.rollouts.c.member))).all())


async def group_state(engine: AsyncEngine, group_id: int) -> tuple[GroupState, str | None]:
    async with engine.connect() as connection:
        query = select(tables.groups.c.state, tables.groups.c.reason).where(
            tables.groups.c.group_id == group_id
        )
        state, reason = (await connection.execute(query)).one()
        return GroupState(state), reason


async def rollout_row(engine: AsyncEngine, rollout_id: int) -> Row[Any]:
    async with engine.connect() as connection:
        query = select(tables.rollouts).where(tables.rollouts.c.rollout_id == rollout_id)
        return (await connection.execute(query)).one()


async def counter(engine: AsyncEngine, run: StoredRun, name: str) -> int:
    """A counter of the run; 0 when nothing was counted."""
    async with engine.connect() as connection:
        found = await connection.scalar(
            select(tables.counters.c.value).where(
                tables.counters.c.run_id == run.run_id, tables.counters.c.name == name
            )
        )
        return int(found or 0)


def small(name: str = "run", /, **queue: object) -> Config:
    """A configuration with P = 2, N = 6, W = 1."""
    settings = {"batch_groups": 2, "group_size": 2, "capacity": 6, **queue}
    return Config.model_validate({"run": {"name": name}, "queue": settings, "rollout": {"timeout_s": 300.0}})


async def a_row_in_every_table(engine: AsyncEngine, name: str = "full") -> StoredRun:
    """A run with a committed batch, and direct rows for the tables that this leaves empty."""
    run = await builders.make_run(engine, small(name))
    await builders.ready_groups(engine, run, ["a", "b"], builders.Author())
    await builders.accepted(engine, run, ["e"], purpose=Purpose.EVAL)
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
        batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
        assert batch is not None and batch.digest is not None
        new = replace(NewVersion(version=1, parent=0, path="/v1", manifest_sha="11"))
        assert await batches.commit(
            connection,
            run.run_id,
            run.name,
            batch=batch,
            new=new,
            metrics=[{"loss": 0.5}],
            subject="policy.x",
        )
        rollout_id = await connection.scalar(
            select(func.min(tables.rollouts.c.rollout_id)).where(tables.rollouts.c.run_id == run.run_id)
        )
        key = {"run_id": run.run_id, "rollout_id": rollout_id, "attempt": 1}
        for table, values in {
            tables.sessions: {**key, "epoch": 1, "token_hash": run.name.encode().ljust(32), "budget": {},
                              "expires": func.now()},
            tables.resumes: {**key, "epoch": 2, "steps": 1, "reason": "why", "given_back": False},
            tables.rollout_servers: {"run_id": run.run_id, "url": "http://127.0.0.1:1"},
            tables.speed_noise: {"run_id": run.run_id, "rollout_id": rollout_id, "scaffold": "shell", "group_id":
                                 select(tables.rollouts.c.group_id).where(tables.rollouts.c.rollout_id == rollout_id).scalar_subquery()},
            tables.artifacts: {**key, "path": "answer.txt", "mode": 0o644, "body": b"7"},
            tables.tool_calls: {**key, "idx": 0, "call": 0, "name": "bash"},
            tables.step_marks: {**key, "idx": 0, "reason": "auxiliary"},
            tables.step_routes: {**key, "idx": 0, "start": 0, "layers": 2, "top_k": 1, "width": 1, "sha": bytes(32),
                                 "routes": b"\x01\x02"},
            tables.trained_steps: {**key, "idx": 0, "batch_id": batch.batch_id, "part": 0, "logprobs": bytes(4)},
            tables.dead_letters: {"run_id": run.run_id, "stream": "TASKS", "subject": "tasks.x.y", "reason": "why",
                                  "deliveries": 1, "body": b"{}"},
            tables.suspect_messages: {"digest": sha256(run.name.encode()), "stream": "TASKS", "tries": 1, "process": "a"},
            tables.blobs: {"sha": sha256(run.name.encode()), "body": run.name.encode()},
            tables.counters: {"run_id": run.run_id, "name": "steps_stale", "value": 1},
            tables.actions: {"run_id": run.run_id, "who": "me@here", "what": "pause", "target": "admission", "reason": "why"},
            tables.processes: {"run_id": run.run_id, "host": "here", "process": "trainer", "pid": 1, "loops": []},
            tables.vettings: {"run_id": run.run_id, "sha": bytes(32), "level": "vetted", "times": 3, "provider": "bubblewrap", "version": 1},
        }.items():  # fmt: skip
            await connection.execute(insert(table).values(**values))
        for table in tables.metadata.sorted_tables:
            found = await connection.scalar(select(func.count()).select_from(table))
            assert found, f"{table.name} is empty"
    return run


def context_of(engine: AsyncEngine, run: StoredRun) -> OrchestratorContext:
    """An orchestrator's context without a server for its bus."""
    return OrchestratorContext(
        run_id=run.run_id, run=run.name, config=Config.from_json(run.config), engine=engine, bus=MemoryBus()
    )


async def record(engine: AsyncEngine, run: StoredRun, events: Sequence[StepRecorded]) -> None:
    """Ingest steps that must all be new."""
    async with engine.begin() as connection:
        done = await ingest(connection, run.run_id, [decode_step(event) for event in events])
    assert set(done.fates) <= {Fate.NEW}


def ended(run: str, lease: Lease, events: Sequence[StepRecorded], **changes: object) -> RolloutFinished:
    """The result of an attempt with these steps."""
    chains = [bytes.fromhex(event.chain_sha) for event in events]
    result = RolloutFinished(
        run=run,
        rollout=lease.rollout_id,
        attempt=lease.attempt,
        epoch=lease.epoch,
        failure_class=FailureClass.COMPLETED,
        steps=len(events),
        last_idx=len(events) - 1,
        digest=trajectory_digest(chains).hex(),
        agent_s=2.0,
    )
    return msgspec.structs.replace(result, **changes)


async def report(context: OrchestratorContext, result: RolloutFinished) -> bool:
    """The work of the consumer of results for one message."""
    async with context.engine.begin() as connection:
        await lock_run(connection, context.run_id)
        moved = await results.report(connection, context.run_id, result)
        if moved:
            await complete_reported(connection, context, [result.rollout])
    return moved


async def verify(
    context: OrchestratorContext, rollout_id: int, reward: float | None, *, ttl_s: float = 60.0
) -> None:
    """Lease the verification of a finished rollout and report how it ended; None: the verifier failed."""
    row = await rollout_row(context.engine, rollout_id)
    async with context.engine.begin() as connection:
        held = await leases.lease(
            connection,
            context.run_id,
            rollout_id,
            row.lease_epoch,
            OWNER,
            ttl_s,
            before=RolloutState.FINISHED,
        )
        assert held is not None
    async with context.engine.begin() as connection:
        await lock_run(connection, context.run_id)
        if reward is None:
            await verify_again(connection, context, rollout_id, held.attempt, held.epoch, "no reward file")
            return
        event = VerdictReached(
            run=context.run,
            rollout=rollout_id,
            attempt=held.attempt,
            epoch=held.epoch,
            failure_class=FailureClass.COMPLETED,
            reward=reward,
        )
        assert await results.verdict(connection, context.run_id, event)
        await conclude_group(connection, context, held.group_id)


async def owed(engine: AsyncEngine, run: StoredRun) -> list[tuple[str, dict[str, object]]]:
    """(subject, body) of every unpublished message, oldest first."""
    async with engine.connect() as connection:
        query = select(tables.outbox).where(tables.outbox.c.run_id == run.run_id)
        rows = await connection.execute(query.order_by(tables.outbox.c.outbox_id))
        return [(row.subject, row.body) for row in rows]
