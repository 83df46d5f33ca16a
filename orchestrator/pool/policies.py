"""Policy versions: what was published, newest first."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import anyio
from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import BatchState, GroupState, Purpose, RolloutState
from orchestrator.pool import history
from orchestrator.pool.tables import batches, groups, policy_versions, rollout_servers, rollouts, train_steps


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One row of policy_versions."""

    version: int
    parent: int | None
    batch_no: int | None
    path: str
    manifest_sha: str


async def newest_version(connection: AsyncConnection, run_id: int) -> PolicyVersion | None:
    """The version that should serve: the newest that no rewind superseded."""
    row = (
        await connection.execute(
            select(policy_versions)
            .where(policy_versions.c.run_id == run_id, policy_versions.c.superseded_by.is_(None))
            .order_by(policy_versions.c.version.desc())
            .limit(1)
        )
    ).first()
    return PolicyVersion(row.version, row.parent, row.batch_no, row.path, row.manifest_sha) if row else None


async def evaluated_version(connection: AsyncConnection, run_id: int) -> PolicyVersion | None:
    """What a server that is reserved for evaluations should serve: the version that the oldest evaluation pins; None: none is dispatched.

    One with a running rollout comes first: of two versions, the one that holds no runner would wait for the other for ever.
    """
    table = policy_versions.c
    at_work = exists().where(
        rollouts.c.group_id == groups.c.group_id,
        rollouts.c.run_id == run_id,
        rollouts.c.state == RolloutState.RUNNING,
    )
    row = (
        await connection.execute(
            select(policy_versions)
            .join(groups, (groups.c.run_id == table.run_id) & (groups.c.pinned_version == table.version))
            .where(
                table.run_id == run_id,
                ~groups.c.done,
                groups.c.purpose == Purpose.EVAL,
                groups.c.state == GroupState.DISPATCHED,
            )
            .order_by(at_work.desc(), groups.c.group_id)
            .limit(1)
        )
    ).first()
    return PolicyVersion(row.version, row.parent, row.batch_no, row.path, row.manifest_sha) if row else None


async def next_version(connection: AsyncConnection, run_id: int) -> int:
    """A number that was never used in this run."""
    last = await connection.scalar(
        select(func.max(policy_versions.c.version)).where(policy_versions.c.run_id == run_id)
    )
    return 0 if last is None else int(last) + 1


async def published(connection: AsyncConnection, run_id: int, versions: Collection[int]) -> set[int]:
    """Those of `versions` that the run ever published; superseded ones too. A row stays as long as its run."""
    possible = sorted(version for version in versions if 0 <= version < 2**31)
    if not possible:
        return set()
    table = policy_versions.c
    return set(
        await connection.scalars(
            select(table.version).where(table.run_id == run_id, table.version.in_(possible))
        )
    )


@dataclass(frozen=True, slots=True)
class Committed:
    """What training has committed, voided batches apart."""

    batches: int
    groups: int


async def committed(connection: AsyncConnection, run_id: int) -> Committed:
    """Of the newest committed batch, which says it for all before it: they are numbered 0, 1, 2 …"""
    newest = (
        select(batches.c.batch_no, batches.c.groups_so_far)
        .where(batches.c.run_id == run_id, batches.c.state == BatchState.COMMITTED)
        .order_by(batches.c.batch_no.desc())
        .limit(1)
    )
    row = (await connection.execute(newest)).one_or_none()
    return Committed(0, 0) if row is None else Committed(row.batch_no + 1, row.groups_so_far)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is."""

    committed_batches: int
    train_steps: int


async def progress(connection: AsyncConnection, run_id: int) -> Progress:
    """Committed batches and their train steps, without voided ones. Every claim asks, so nothing that counts the whole past.

    Batches that count are numbered 0, 1, 2 …; train steps 1, 2, 3 …, those of voided batches too.
    """
    done = await committed(connection, run_id)
    numbered = await connection.scalar(
        select(func.max(train_steps.c.train_step)).where(train_steps.c.run_id == run_id)
    )
    undone = await connection.scalar(
        select(func.count())
        .select_from(train_steps.join(batches, batches.c.batch_id == train_steps.c.batch_id))
        .where(batches.c.run_id == run_id, batches.c.state == BatchState.VOIDED)
    )
    return Progress(done.batches, int(numbered or 0) - int(undone or 0))


async def needed_versions(connection: AsyncConnection, run_id: int, newest: int) -> set[int]:
    """Versions whose weights must stay on disk: the `newest` ones that serve or may, the first, what servers hold, what open groups pin.

    Weights that a rewind published again lie where they lay, and count once.
    """
    last = func.max(policy_versions.c.version)
    kept = (
        select(last)
        .where(policy_versions.c.run_id == run_id, policy_versions.c.superseded_by.is_(None))
        .group_by(policy_versions.c.path)
        .order_by(last.desc())
        .limit(newest)
    )
    served = select(rollout_servers.c.version).where(rollout_servers.c.run_id == run_id)
    pinned = select(groups.c.pinned_version).where(groups.c.run_id == run_id, ~groups.c.done)
    needed = {0}
    for query in (kept, served, pinned):
        needed |= {version for version in await connection.scalars(query) if version is not None}
    return needed


async def needed_checkpoints(connection: AsyncConnection, run_id: int, newest: int) -> set[str]:
    """The names of the directories of `needed_versions`."""
    needed = await needed_versions(connection, run_id, newest)
    paths = await connection.scalars(
        select(policy_versions.c.path).where(
            policy_versions.c.run_id == run_id, policy_versions.c.version.in_(needed)
        )
    )
    return {Path(path).name for path in paths}


async def check_pinned(connection: AsyncConnection, run_id: int, version: int, newest: int) -> None:
    """Raise ConfigurationError, one sentence, unless a group may pin `version`: no server would ever serve it, and the group's rollouts would
    hold a slot for ever. `newest` as in `needed_versions`.

    What it allows stays there until the group is committed: who prunes or rewinds locks the run, and finds the group afterwards.
    """
    await history.hold_run(connection, run_id)
    table = policy_versions.c
    row = (
        await connection.execute(
            select(table.superseded_by, table.path).where(table.run_id == run_id, table.version == version)
        )
    ).first()
    if row is None:
        last = await newest_version(connection, run_id)
        if (
            version == 0 and last is None
        ):  # a run that still starts: its first rollouts wait for the first policy
            return
        known = f"its newest is {last.version}" if last else "it has none yet"
        raise ConfigurationError(f"policy version {version} was never published in this run: {known}")
    if row.superseded_by is not None:
        raise ConfigurationError(
            f"policy version {version} was undone by a rewind: version {row.superseded_by} came in its place"
        )
    if Path(row.path).name in await needed_checkpoints(connection, run_id, newest):
        return
    # The trainer may not have pruned yet. Where its directory is not seen from here, what the data pool says counts.
    if not await anyio.Path(row.path).exists():
        raise ConfigurationError(
            f"the weights of policy version {version} are not kept any more ({Path(row.path).name}): "
            "trainer.keep_checkpoints says how many are"
        )
