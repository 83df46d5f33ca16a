"""Runs: creation with their queue row and steps partition, look-up by name, intake and end."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.ids import check_name
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Entity, RunState
from orchestrator.pool import transitions
from orchestrator.pool.locks import lock_table
from orchestrator.pool.rows import from_wide_row, member
from orchestrator.pool.tables import groups, queue, runs

RUN_ENDS: Final = "the run ends: "
"""The beginning of the reason why admission is closed once the end of the run was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One training run. `config` is the resolved configuration from its creation, `process_config` what the newest start of its orchestrator kept
    of its own (`settings.newest_start`); None: nothing."""

    run_id: int
    name: str
    state: RunState
    config: dict[str, Any]
    pruned: datetime | None = None  # when its steps, messages and prompts were dropped
    created: datetime | None = None  # as found: a run of that name in another database is a different run
    process_config: dict[str, Any] | None = None


async def find_run(connection: AsyncConnection, name: str) -> StoredRun | None:
    """The run of that name, or None."""
    row = (await connection.execute(select(runs).where(runs.c.name == name))).first()
    return from_wide_row(StoredRun, row) if row else None


async def get_run(connection: AsyncConnection, name: str) -> StoredRun:
    """The run of that name. ConfigurationError lists the known runs."""
    found = await find_run(connection, name)
    if found is None:
        names = (await connection.scalars(select(runs.c.name).order_by(runs.c.run_id))).all()
        raise ConfigurationError(
            f"run {quoted(name)} does not exist in this database; known: {', '.join(names) or 'none yet'}"
        )
    return found


async def ensure_run(connection: AsyncConnection, name: str, config: dict[str, Any]) -> StoredRun:
    """The run of that name, created with `config` if it is new. An existing run keeps its original configuration."""
    check_name("run", name)
    if (found := await find_run(connection, name)) is not None:
        return found
    # One creator at a time: otherwise two first starts would both create the partition.
    await lock_table(connection, "runs")
    if (found := await find_run(connection, name)) is not None:
        return found
    run_id = await connection.scalar(insert(runs).values(name=name, config=config).returning(runs.c.run_id))
    assert run_id is not None
    await connection.execute(insert(queue).values(run_id=run_id))
    await connection.execute(select(func.open_partition(run_id)))
    await transitions.record_created(connection, run_id, Entity.RUN, run_id, RunState.ACTIVE)
    return StoredRun(run_id=run_id, name=name, state=RunState.ACTIVE, config=config)


async def keep_process_config(connection: AsyncConnection, run_id: int, values: dict[str, Any]) -> None:
    """Note the process keys of an orchestrator that starts, in place of those of an earlier start."""
    await connection.execute(
        update(runs)
        .where(runs.c.run_id == run_id, runs.c.process_config.is_distinct_from(values))
        .values(process_config=values)
    )


async def close_intake(connection: AsyncConnection, run_id: int) -> bool:
    """Accept no further task of this run. False if intake was closed before."""
    result = await connection.execute(
        update(queue)
        .where(queue.c.run_id == run_id, queue.c.intake_open)
        .values(intake_open=False)
        .returning(queue.c.run_id)
    )
    return result.first() is not None


async def intake_open(connection: AsyncConnection, run_id: int) -> bool:
    """Whether new submissions are accepted. The answer holds until the end of the transaction: the queue row is share-locked."""
    return bool(
        await connection.scalar(
            select(queue.c.intake_open).where(queue.c.run_id == run_id).with_for_update(read=True)
        )
    )


async def takes_steps(connection: AsyncConnection, run_id: int) -> bool:
    """Whether steps of the run can be stored; not if it is pruned. The answer holds until the end of the transaction."""
    pruned = select(runs.c.pruned).where(runs.c.run_id == run_id).with_for_update(read=True)
    return (await connection.scalar(pruned)) is None


async def first_dispatch_age(connection: AsyncConnection, run_id: int) -> float:
    """Seconds since the run's first training group was dispatched; 0 before."""
    age = await connection.scalar(
        select(func.extract("epoch", func.clock_timestamp() - groups.c.dispatched)).where(
            groups.c.run_id == run_id, groups.c.seq == 0
        )
    )
    return float(age or 0.0)


async def begin_end(connection: AsyncConnection, run_id: int, reason: str) -> bool:
    """active → ending: no more intake, no more dispatch. False if it was ending before."""
    row = await connection.execute(
        update(runs)
        .where(runs.c.run_id == run_id, runs.c.state == RunState.ACTIVE)
        .values(state=RunState.ENDING)
        .returning(runs.c.run_id)
    )
    if row.first() is None:
        return False
    await connection.execute(
        update(queue)
        .where(queue.c.run_id == run_id)
        .values(intake_open=False, admission_open=False, admission_reason=f"{RUN_ENDS}{reason}")
    )
    await transitions.moved_run(connection, run_id, RunState.ACTIVE, RunState.ENDING, reason)
    return True


async def lock_intake(connection: AsyncConnection, run_id: int) -> None:
    """Wait for acceptances that are not committed yet (`takes_steps` locks the same row), and let none begin until the end of the transaction. The
    row of the run is locked before that of its queue, as acceptances do."""
    await connection.execute(
        select(runs.c.run_id).where(runs.c.run_id == run_id).with_for_update(key_share=True)
    )


async def finish_end(connection: AsyncConnection, run_id: int) -> bool:
    """ending → ended once every group is terminal. Accepted groups for evaluation or recording are awaited without limit. A group whose
    acceptance is not committed is awaited too. Before the queue row is locked, call `lock_intake`."""
    await lock_intake(connection, run_id)
    open_groups = await connection.scalar(
        select(func.count()).where(groups.c.run_id == run_id, ~groups.c.done)
    )
    if open_groups:
        return False
    row = await connection.execute(
        update(runs)
        .where(runs.c.run_id == run_id, runs.c.state == RunState.ENDING)
        .values(state=RunState.ENDED, ended=func.clock_timestamp())
        .returning(runs.c.run_id)
    )
    if row.first() is None:
        return False
    await transitions.moved_run(connection, run_id, RunState.ENDING, RunState.ENDED, None)
    return True


async def state_of(connection: AsyncConnection, run_id: int) -> RunState:
    """The state that the run is in."""
    return member(RunState, str(await connection.scalar(select(runs.c.state).where(runs.c.run_id == run_id))))
