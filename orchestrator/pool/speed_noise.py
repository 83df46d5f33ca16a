"""Measurements of the speed noise: one row per measurement, inserted when its replays are submitted, completed when they have ended."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.ids import sha256
from orchestrator.pool.tables import groups, speed_noise, tasks
from orchestrator.rewards.noise import Noise

MAX_FAILED = 3
"""Consecutive measurements without a result after which the scaffold waits for the interval."""


KEY_BYTES: Final = 1024
"""Of a scaffold in its rows. An index holds it, and a row of an index has 2,704 bytes at most."""


@dataclass(frozen=True, slots=True)
class ReplayedTask:
    """The task of a group, for its replays."""

    name: str
    settings: dict[str, Any]
    body: dict[str, Any]


def key_of(scaffold: str) -> str:
    """A scaffold as its rows name it: itself, or the hash of a longer path.

    >>> key_of("shell"), key_of("/home/" + "a/" * 600 + "agent.py")[:16]
    ('shell', 'sha256:8d2956c6d')
    """
    name = scaffold.encode()
    return scaffold if len(name) <= KEY_BYTES else f"sha256:{sha256(name).hex()}"


async def newest(connection: AsyncConnection, run_id: int, scaffold: str) -> float | None:
    """sd(log T) of the newest measurement of a scaffold; None before the first."""
    table = speed_noise.c
    return await connection.scalar(
        select(table.sd_log_t)
        .where(table.run_id == run_id, table.scaffold == key_of(scaffold), table.sd_log_t.is_not(None))
        .order_by(table.group_id.desc())
        .limit(1)
    )


async def due(connection: AsyncConnection, run_id: int, scaffold: str, interval_s: float) -> bool:
    """Whether a scaffold needs a measurement: none is running, and the newest result is older than `interval_s` by the database's clock.
    After MAX_FAILED without a result the interval counts from the last of them."""
    table = speed_noise.c
    recent = table.at > func.now() - func.make_interval(0, 0, 0, 0, 0, 0, interval_s)
    rows = (
        await connection.execute(
            select(groups.c.done, table.sd_log_t.is_not(None).label("measured"), recent.label("recent"))
            .join(groups, groups.c.group_id == table.group_id)
            .where(table.run_id == run_id, table.scaffold == key_of(scaffold))
            .order_by(table.group_id.desc())
            .limit(MAX_FAILED)
        )
    ).all()
    if any(not row.done or (row.measured and row.recent) for row in rows):
        return False
    return len(rows) < MAX_FAILED or not all(row.recent for row in rows)


async def task_of(connection: AsyncConnection, group_id: int) -> ReplayedTask:
    """The task of a group."""
    row = (
        await connection.execute(
            select(tasks.c.name, tasks.c.settings, tasks.c.body)
            .join(groups, groups.c.task_id == tasks.c.task_id)
            .where(groups.c.group_id == group_id)
        )
    ).one()
    return ReplayedTask(row.name, row.settings, row.body)


async def begin(
    connection: AsyncConnection, run_id: int, submission: str, scaffold: str, rollout_id: int
) -> None:
    """Record that the replays of a rollout are submitted as `submission`."""
    group_id = (
        select(groups.c.group_id)
        .where(groups.c.run_id == run_id, groups.c.submission == submission)
        .scalar_subquery()
    )
    await connection.execute(
        insert(speed_noise).values(
            run_id=run_id, group_id=group_id, scaffold=key_of(scaffold), rollout_id=rollout_id
        )
    )


async def finish(connection: AsyncConnection, group_id: int, noise: Noise) -> None:
    """Record that the replays of a measurement have ended."""
    await connection.execute(
        update(speed_noise)
        .where(speed_noise.c.group_id == group_id)
        .values(replays=noise.replays, sd_log_t=noise.sd_log_t, seconds=noise.seconds, measured=func.now())
    )


async def source_of(connection: AsyncConnection, group_id: int) -> int | None:
    """The rollout that the members of a group replay; None: it is not a measurement."""
    return await connection.scalar(select(speed_noise.c.rollout_id).where(speed_noise.c.group_id == group_id))
