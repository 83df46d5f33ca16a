"""A small healthy run for the auditor, made by the functions that a real run is made by, with a row of every kind; live or ended."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import BatchState, FailureClass, Purpose, RolloutState
from orchestrator.pool import (
    batches,
    leases,
    resumes,
    run_end,
    submissions,
    tables,
)
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.dispatch import dispatch_other
from orchestrator.pool.engine import open_engine
from orchestrator.pool.quarantine import quarantine
from orchestrator.pool.runs import StoredRun, begin_end, finish_end
from orchestrator.pool.trainer_logprobs import TrainedStep
from orchestrator.roles.conclude import conclude_group
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from tests import builders
from tests.integration.pool.rig import context_of, ended, record, report, rollouts_of, verify
from tests.services import Databases

TTL_S = 3000.0
NAMES = ("q1", "q2", "a", "b", "c", "d", "e", "poison", "cancelled", "busy")  # at queue positions 0 … 9
LEDGER = (*NAMES, "eval", "late", "bad")
CONFIG = Config.model_validate(
    {
        "run": {"name": "healthy"},
        "queue": {"batch_groups": 2, "capacity": 12, "window_fraction": 0.3},
        "rollout": {"lease_ttl_s": TTL_S},
    }
)


def write_checkpoint(policies: Path, version: int, batch_no: int | None, digest: bytes | None) -> NewVersion:
    """A directory that looks like a checkpoint, and the row that publishes it."""
    directory = policies / CONFIG.run.name / f"version-{version:06d}"
    contents = {"model.safetensors": f"weights {version}".encode(), "trainer/state.json": b"{}"}
    for name, content in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    extra = {"batch_digest": digest.hex()} if digest else {}
    manifest = {
        "state": {"version": version, "batch_no": batch_no, "train_steps": version, "extra": extra},
        "files": {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for name, content in contents.items()
        },
    }
    raw = json.dumps(manifest).encode()
    (directory / "manifest.json").write_bytes(raw)
    parent = version - 1 if version else None
    return NewVersion(
        version=version, parent=parent, path=str(directory), manifest_sha=hashlib.sha256(raw).hexdigest()
    )


async def grow(url: str, policies: Path, *, end: bool) -> None:
    """Everything that can happen to a group, once."""
    async with open_engine(url, name="rig") as engine:
        run = await builders.make_run(engine, CONFIG)
        async with engine.begin() as connection:
            first = write_checkpoint(policies, 0, None, None)
            await batches.publish(connection, run.run_id, run.name, first, "policy.healthy", None)
        author = builders.Author(turns=2)
        ids = dict(zip(NAMES, await builders.accepted(engine, run, NAMES), strict=True))
        await builders.dispatch(engine, run)
        for name in NAMES[:7]:
            await builders.finish(engine, run, ids[name], author)
        await _lose(engine, run, ids["poison"], FailureClass.POISON)
        await _lose(engine, run, ids["cancelled"], FailureClass.CANCELLED)
        await _fail_once_and_run_on(engine, run, ids["busy"], author)
        await _evaluate(engine, run, author)
        await _train(engine, run, policies)
        await builders.accepted(engine, run, ["late"])
        async with engine.begin() as connection:
            await submissions.reject(connection, run.run_id, "bad", "no such domain")
            await connection.execute(
                insert(tables.rollout_servers).values(
                    run_id=run.run_id, url="http://127.0.0.1:1", owner="gateway", state="ready", version=2
                )
            )
        if end:
            async with engine.begin() as connection:
                assert await begin_end(connection, run.run_id, "test")
                await run_end.filter_open(connection, run.run_id)
                assert await finish_end(connection, run.run_id)


async def _lose(engine: AsyncEngine, run: StoredRun, group_id: int, failure: FailureClass) -> None:
    async with engine.begin() as connection:
        for rollout_id in await rollouts_of(connection, group_id):
            assert await leases.lose(connection, rollout_id, RolloutState.QUEUED, 1, failure, "it failed")
        await conclude_group(connection, context_of(engine, run), group_id)


async def _fail_once_and_run_on(
    engine: AsyncEngine, run: StoredRun, group_id: int, author: builders.Author
) -> None:
    """The first rollout records a partial attempt, fails with its sandbox, and runs again; the second loses its runner and continues
    from two recorded steps; the others run."""
    context = context_of(engine, run)
    async with engine.begin() as connection:
        held = [
            await leases.lease(connection, run.run_id, id, 1, "runner", TTL_S)
            for id in await rollouts_of(connection, group_id)
        ]
    lease = held[0]
    assert lease is not None
    written = author.trajectory(lease, run.name, author.ids(8, 9))
    await record(engine, run, written[1:])  # the step that they continue never arrived
    assert await report(context, ended(run.name, lease, written, failure_class=FailureClass.INFRA_FAILURE))
    async with engine.begin() as connection:
        assert await leases.lease(connection, run.run_id, lease.rollout_id, 2, "runner", TTL_S)
    other = held[1]
    assert other is not None
    written = author.trajectory(other, run.name, author.ids(8, 9))
    await record(engine, run, written[:2])
    async with engine.begin() as connection:
        key = {"run_id": run.run_id, "rollout_id": other.rollout_id, "attempt": 1, "epoch": 1}
        await connection.execute(
            insert(tables.sessions).values(
                **key, token_hash=b"busy", budget={}, expires=func.now(), replayable=True
            )
        )
        assert await resumes.resume(
            connection,
            other.rollout_id,
            RolloutState.RUNNING,
            1,
            reason="the runner's lease ran out",
            given_back=False,
            most=3,
            retry_delay_s=0.0,
        )
        assert await leases.lease(connection, run.run_id, other.rollout_id, 2, "runner", TTL_S)
    await record(engine, run, [msgspec.structs.replace(written[2], epoch=2)])


async def _evaluate(engine: AsyncEngine, run: StoredRun, author: builders.Author) -> None:
    context = context_of(engine, run)
    [group_id] = await builders.accepted(
        engine, run, ["eval"], size=2, purpose=Purpose.EVAL, pinned_version=0
    )
    async with engine.begin() as connection:
        assert len(await dispatch_other(connection, run.run_id, 8)) == 2
        ids = await rollouts_of(connection, group_id)
    for rollout_id in ids:
        async with engine.begin() as connection:
            lease = await leases.lease(connection, run.run_id, rollout_id, 1, "runner", TTL_S)
        assert lease is not None
        written = author.trajectory(lease, run.name, author.ids(8, 9))
        await record(engine, run, written)
        assert await report(context, ended(run.name, lease, written))
        await verify(context, rollout_id, 1.0, ttl_s=TTL_S)


async def _train(engine: AsyncEngine, run: StoredRun, policies: Path) -> None:
    """q1 and q2 are quarantined, a and b are batch 0, c and d batch 1, e waits in an open batch."""
    queue = CONFIG.queue
    policy = queue_policy(queue.policy, queue.capacity, queue.window_fraction)
    version = 0
    for _ in range(4):
        async with engine.begin() as connection:
            batch = await batches.take(connection, run.run_id, policy, queue.batch_groups, 1)
            assert batch is not None
            if batch.state is BatchState.OPEN:
                assert batch.batch_no == 2 and batch.taken == 1
                return
            if not version:
                assert await quarantine(connection, run.run_id, batch.batch_id, "its loss is not finite")
                version = 1
                continue
            new = write_checkpoint(policies, version, batch.batch_no, batch.digest)
            metrics = [{"part": 0}, {"part": 1}]
            steps, members = tables.steps.c, tables.batch_rollouts.c
            same = (steps.rollout_id == members.rollout_id) & (steps.attempt == members.attempt)
            rows = await connection.execute(
                select(steps.rollout_id, steps.attempt, steps.idx, steps.logprobs).where(
                    same, steps.run_id == run.run_id, members.batch_id == batch.batch_id
                )
            )
            trained = [
                TrainedStep(
                    rollout_id=row.rollout_id, attempt=row.attempt, idx=row.idx, part=0, logprobs=row.logprobs
                )
                for row in rows
            ]
            assert trained and await batches.commit(
                connection,
                run.run_id,
                run.name,
                batch=batch,
                new=new,
                metrics=metrics,
                subject="policy.healthy",
                trained=trained,
            )
            version += 1


@dataclass(frozen=True, slots=True)
class Healthy:
    """Names of template databases, and the checkpoints that belong to both."""

    live: str
    ended: str
    policies: Path


@pytest.fixture(scope="module")
def healthy(
    databases: Databases,
    template_database: str,
    services_runner: asyncio.Runner,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Healthy]:
    """The run as it lives and as it ended, to be copied by each test."""
    made = Healthy("audit_live", "audit_ended", tmp_path_factory.mktemp("policies"))
    for name in (made.live, made.ended):
        url = databases.create(name, template=template_database)
        services_runner.run(grow(url, made.policies, end=name == made.ended))
    yield made
    for name in (made.live, made.ended):
        databases.drop(name)
