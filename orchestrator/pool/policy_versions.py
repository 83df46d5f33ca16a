"""Policy versions: the published ones, newest first."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import anyio
from sqlalchemy import exists, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import BatchState, GroupState, Purpose, RolloutState
from orchestrator.pool import transitions
from orchestrator.pool.columns import among
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.tables import batches, groups, policy_versions, rollout_servers, rollouts, train_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One row of policy_versions."""

    version: int
    parent: int | None
    batch_no: int | None
    path: str
    manifest_sha: str


async def newest_version(connection: AsyncConnection, run_id: int) -> PolicyVersion | None:
    """The version that should serve: the newest that no rewind has superseded."""
    row = (
        await connection.execute(
            select(policy_versions)
            .where(policy_versions.c.run_id == run_id, policy_versions.c.superseded_by.is_(None))
            .order_by(policy_versions.c.version.desc())
            .limit(1)
        )
    ).first()
    return from_wide_row(PolicyVersion, row) if row else None


async def record_first_version(
    connection: AsyncConnection, run_id: int, directory: Path, manifest_sha: str
) -> None:
    """Insert version 0, without an announcement on the bus: for runs without a trainer. `manifest_sha`: hex sha256 of its manifest.json."""
    await connection.execute(
        insert(policy_versions).values(
            run_id=run_id, version=0, path=str(directory), manifest_sha=manifest_sha
        )
    )


async def evaluated_version(connection: AsyncConnection, run_id: int) -> PolicyVersion | None:
    """The version that a server reserved for evaluations should serve: the pin of the oldest evaluation; None: none is dispatched.

    A version with a running rollout comes first: otherwise, a version without a runner could wait forever for a version that holds them.
    """
    table = policy_versions.c
    unfinished = exists().where(
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
            .order_by(unfinished.desc(), groups.c.group_id)
            .limit(1)
        )
    ).first()
    return from_wide_row(PolicyVersion, row) if row else None


async def next_version(connection: AsyncConnection, run_id: int) -> int:
    """A number that this run has never used."""
    last = await connection.scalar(
        select(func.max(policy_versions.c.version)).where(policy_versions.c.run_id == run_id)
    )
    return 0 if last is None else int(last) + 1


async def published(connection: AsyncConnection, run_id: int, versions: Collection[int]) -> set[int]:
    """Those of `versions` that the run has ever published, including superseded ones. A row stays as long as its run."""
    valid = sorted(version for version in versions if 0 <= version < 2**31)
    if not valid:
        return set()
    table = policy_versions.c
    return set(
        await connection.scalars(
            select(table.version).where(table.run_id == run_id, among(table.version, valid))
        )
    )


@dataclass(frozen=True, slots=True)
class Committed:
    """The versions that training has committed, without voided batches."""

    batches: int
    groups: int


async def committed(connection: AsyncConnection, run_id: int) -> Committed:
    """Read from the newest committed batch, which implies all before it: they are numbered 0, 1, 2 …"""
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
    """The progress of training."""

    committed_batches: int
    train_steps: int


async def progress(connection: AsyncConnection, run_id: int) -> Progress:
    """Committed batches and their train steps, without voided ones. Every claim calls this, so it never counts the whole history.

    Batches that count are numbered 0, 1, 2 …; train steps are numbered 1, 2, 3 …, including those of voided batches.
    """
    totals = await committed(connection, run_id)
    numbered = await connection.scalar(
        select(func.max(train_steps.c.train_step)).where(train_steps.c.run_id == run_id)
    )
    undone = await connection.scalar(
        select(func.count())
        .select_from(train_steps.join(batches, batches.c.batch_id == train_steps.c.batch_id))
        .where(batches.c.run_id == run_id, batches.c.state == BatchState.VOIDED)
    )
    return Progress(totals.batches, int(numbered or 0) - int(undone or 0))


async def needed_versions(connection: AsyncConnection, run_id: int, newest: int) -> set[int]:
    """Versions whose weights must stay on disk: the `newest` that serve or may serve, the first, those on servers, those pinned by open groups.

    Weights that a rewind published again stay at their old path and count once.
    """
    last = func.max(policy_versions.c.version)
    retained = (
        select(last)
        .where(policy_versions.c.run_id == run_id, policy_versions.c.superseded_by.is_(None))
        .group_by(policy_versions.c.path)
        .order_by(last.desc())
        .limit(newest)
    )
    served = select(rollout_servers.c.version).where(rollout_servers.c.run_id == run_id)
    pinned = select(groups.c.pinned_version).where(groups.c.run_id == run_id, ~groups.c.done)
    needed = {0}
    for query in (retained, served, pinned):
        needed |= {version for version in await connection.scalars(query) if version is not None}
    return needed


async def needed_checkpoints(connection: AsyncConnection, run_id: int, newest: int) -> set[str]:
    """The directory names of `needed_versions`."""
    needed = await needed_versions(connection, run_id, newest)
    paths = await connection.scalars(
        select(policy_versions.c.path).where(
            policy_versions.c.run_id == run_id, among(policy_versions.c.version, needed)
        )
    )
    return {Path(path).name for path in paths}


async def check_pinned(connection: AsyncConnection, run_id: int, version: int, newest: int) -> None:
    """Raise ConfigurationError, one sentence, unless a group may pin `version`: otherwise no server would ever serve it, and the group's rollouts
    would hold a slot forever. `newest` as in `needed_versions`.

    An allowed version stays until the group is committed: a prune or rewind locks the run, and finds the group afterwards.
    """
    await transitions.hold_run(connection, run_id)
    table = policy_versions.c
    row = (
        await connection.execute(
            select(table.superseded_by, table.path).where(table.run_id == run_id, table.version == version)
        )
    ).first()
    if row is None:
        last = await newest_version(connection, run_id)
        # A run that is starting: its first rollouts wait for the first policy.
        if version == 0 and last is None:
            return
        available = f"its newest is {last.version}" if last else "it has none yet"
        raise ConfigurationError(f"policy version {version} was never published in this run: {available}")
    if row.superseded_by is not None:
        raise ConfigurationError(
            f"policy version {version} was undone by a rewind: version {row.superseded_by} came in its place"
        )
    if Path(row.path).name in await needed_checkpoints(connection, run_id, newest):
        return
    # The trainer may not have pruned yet. If its directory is not visible from here, the data pool decides.
    if not await anyio.Path(row.path).exists():
        raise ConfigurationError(
            f"the weights of policy version {version} are not kept any more ({Path(row.path).name}): "
            "trainer.keep_checkpoints says how many are"
        )
