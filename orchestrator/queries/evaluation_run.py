"""Queries of an evaluation client during its run: published and served versions, accepted and ended groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import Purpose, RunState, ServerState
from orchestrator.pool.dead_letters import tried_sql
from orchestrator.pool.tables import groups, policy_versions, rollout_servers, runs


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """`superseded_by`: the version that a rewind put in its place; `path`: the directory of its weights, which may be deleted."""

    superseded_by: int | None
    path: str


async def is_training(connection: AsyncConnection, run_id: int) -> bool:
    """Whether the run is active and has unfinished groups to train."""
    open_groups = select(groups.c.group_id).where(
        groups.c.run_id == run_id, groups.c.purpose == Purpose.TRAIN, groups.c.done.is_(False)
    )
    if await connection.scalar(select(runs.c.state).where(runs.c.run_id == run_id)) != RunState.ACTIVE:
        return False
    return bool(await connection.scalar(select(open_groups.exists())))


async def has_version(connection: AsyncConnection, run_id: int) -> bool:
    """Whether the run ever published a policy version."""
    query = select(policy_versions.c.version).where(policy_versions.c.run_id == run_id).limit(1)
    return await connection.scalar(query) is not None


async def newest_version(connection: AsyncConnection, run_id: int) -> int | None:
    """The newest policy version that no rewind undid; None if there is none."""
    table = policy_versions.c
    found = await connection.scalar(
        select(func.max(table.version)).where(table.run_id == run_id, table.superseded_by.is_(None))
    )
    return None if found is None else int(found)


async def published_version(
    connection: AsyncConnection, run_id: int, version: int
) -> PublishedVersion | None:
    """One policy version; None if it was never published."""
    table = policy_versions.c
    query = select(table.superseded_by, table.path).where(table.run_id == run_id, table.version == version)
    row = (await connection.execute(query)).first()
    return None if row is None else PublishedVersion(row.superseded_by, row.path)


async def served_versions(connection: AsyncConnection, run_id: int) -> Sequence[int | None]:
    """The version of every rollout server that is ready."""
    table = rollout_servers.c
    query = select(table.version).where(table.run_id == run_id, table.state == ServerState.READY)
    return (await connection.scalars(query)).all()


async def evaluated_submissions(
    connection: AsyncConnection, run_id: int, suite: str
) -> list[tuple[int, str]]:
    """(version, submission) of every group that was accepted for the suite, in their order."""
    query = (
        select(groups.c.pinned_version, groups.c.submission)
        .where(groups.c.run_id == run_id, groups.c.purpose == Purpose.EVAL, groups.c.label == suite)
        .where(groups.c.pinned_version.is_not(None))
        .order_by(groups.c.group_id)
    )
    return [(row.pinned_version, row.submission) for row in await connection.execute(query)]


async def evaluation_counts(
    connection: AsyncConnection, run_id: int, suite: str, version: int
) -> tuple[int, int]:
    """(groups that ended, groups that were accepted), from the newest try of every submission."""
    first: ColumnElement[str] = literal_column(tried_sql("groups.submission"))
    newest = (
        select(groups.c.done)
        .where(
            groups.c.run_id == run_id,
            groups.c.purpose == Purpose.EVAL,
            groups.c.label == suite,
            groups.c.pinned_version == version,
        )
        .order_by(first, groups.c.group_id.desc())
        .ext(distinct_on(first))
        .subquery()
    )
    query = select(func.count().filter(newest.c.done).label("done"), func.count().label("total")).select_from(
        newest
    )
    row = (await connection.execute(query)).one()
    return int(row.done), int(row.total)
