"""A rewind undoes the batches after a given batch, as if they had never been trained. One transaction, under the lock of the queue row.

| row | before | after |
|---|---|---|
| batches after N, and their items | committed, closed, open | voided; their rows and train steps stay as history, with the person and the reason |
| groups of those batches | trained, taken | ready, at their unchanged queue positions |
| queue.floor_seq | | the oldest open position |
| versions of those batches | serve, or did | superseded by the version below |
| a new version | | batch N's weights again, under the next number: parent and manifest are those of batch N's version |

Version numbers never decrease, so every comparison of versions (gateways, importance ratios, staleness) sees an ordinary newer version. A trainer
at another version is fenced: its claim finds another newest version, and its commit finds a batch that is no longer closed. Groups that are
dispatched or ready stay as they are, from any version: their ratios use their own behavior logprobs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import BatchState, GroupState, RunState
from orchestrator.pool import transitions
from orchestrator.pool.batches import NewVersion, publish
from orchestrator.pool.columns import among
from orchestrator.pool.policy_versions import PolicyVersion, next_version
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.tables import batch_items, batches, groups, policy_versions, queue, runs

FIRST = -1
"""The batch number before the first batch: a rewind to it leaves the initial weights of the run."""
REWIND = "rewind"
"""The beginning of a voided batch's reason in the history."""
_FREED = {
    BatchState.COMMITTED: GroupState.TRAINED,
    BatchState.CLOSED: GroupState.TAKEN,
    BatchState.OPEN: GroupState.TAKEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The result of a rewind. `version` is None if only a batch without weights was undone and the newest version did not change."""

    to_batch: int
    batches: tuple[int, ...]  # numbers of the undone batches
    groups: int  # number of groups set free
    superseded: tuple[int, ...]  # versions
    version: int | None


async def versions_by_batch(connection: AsyncConnection, run_id: int) -> dict[int, PolicyVersion]:
    """The version of each batch that counts (FIRST: before the first). If it was published again, the newest."""
    rows = await connection.execute(
        select(policy_versions)
        .where(policy_versions.c.run_id == run_id, policy_versions.c.superseded_by.is_(None))
        .order_by(policy_versions.c.version)
    )
    return {
        FIRST if row.batch_no is None else row.batch_no: from_wide_row(PolicyVersion, row) for row in rows
    }


async def rewind(
    connection: AsyncConnection,
    run_id: int,
    to_batch: int,
    subject: str,
    why: str,
    there: Callable[[PolicyVersion], bool],
) -> Rewound:
    """Undo every batch after `to_batch`; `why` is stored with each. `subject` is the subject of the new version's announcement.

    `there` reports, quickly, whether a checkpoint exists: no process prunes while the queue row is locked. Raises
    ConfigurationError, one sentence, if the batch, a later batch or its checkpoint does not exist, if the run has
    ended, or while evaluations are open that pin a version.
    """
    await transitions.lock_run(connection, run_id)
    run = (await connection.execute(select(runs.c.name, runs.c.state).where(runs.c.run_id == run_id))).one()
    if run.state != RunState.ACTIVE:
        raise ConfigurationError(
            f"run {quoted(run.name)} is {run.state}: what it trained stays trained; continue from its weights in a new run"
        )
    versions = await versions_by_batch(connection, run_id)
    target = versions.get(to_batch)
    if target is None:
        raise ConfigurationError(
            f"batch {to_batch} does not count: {_choice(sorted(versions)) if versions else 'nothing is trained yet'}"
        )
    undone = await _after(connection, run_id, to_batch)
    if not any(row.groups for row in undone):  # a batch is opened before its first group arrives
        raise ConfigurationError(f"batch {to_batch} is the last one: there is nothing to undo")
    if not there(target):
        restorable = [number for number, version in sorted(versions.items()) if there(version)]
        raise ConfigurationError(
            f"the checkpoint of batch {to_batch} (version {target.version}) is pruned; {_choice(restorable)}; "
            "trainer.keep_checkpoints of a new run keeps more"
        )
    await _refuse_pins(connection, run_id)
    freed_groups = await _void(connection, undone, f"{REWIND} to batch {to_batch}: {why}")
    await _lower_floor(connection, run_id)
    superseded, version = await _supersede(connection, run_id, run.name, target, to_batch, subject)
    await transitions.count(connection, run_id, "rewinds")
    return Rewound(
        to_batch=to_batch,
        batches=tuple(row.batch_no for row in undone),
        groups=freed_groups,
        superseded=superseded,
        version=version,
    )


def _choice(numbers: Sequence[int]) -> str:
    """The possible numbers, ascending."""
    shown = ", ".join("-1 (the first weights)" if number == FIRST else str(number) for number in numbers)
    return f"choose from {shown}"


async def _after(connection: AsyncConnection, run_id: int, to_batch: int) -> Sequence[Any]:
    """Rows of batch_id, batch_no, state and the number of groups."""
    rows = await connection.execute(
        select(
            batches.c.batch_id,
            batches.c.batch_no,
            batches.c.state,
            func.count(batch_items.c.group_id).label("groups"),
        )
        .join(batch_items, batch_items.c.batch_id == batches.c.batch_id, isouter=True)
        .where(
            batches.c.run_id == run_id, batches.c.state != BatchState.VOIDED, batches.c.batch_no > to_batch
        )
        .group_by(batches.c.batch_id)
        .order_by(batches.c.batch_no)
    )
    return rows.all()


async def _refuse_pins(connection: AsyncConnection, run_id: int) -> None:
    """An evaluation uses one version from its first step to its last. Another version in between would invalidate it."""
    pins = await connection.execute(
        select(groups.c.pinned_version, func.count().label("n"))
        .where(groups.c.run_id == run_id, ~groups.c.done, groups.c.pinned_version.is_not(None))
        .group_by(groups.c.pinned_version)
        .order_by(groups.c.pinned_version)
    )
    if pinned_groups := pins.all():
        first = pinned_groups[0]
        raise ConfigurationError(
            f"{sum(row.n for row in pinned_groups)} evaluations are not over yet, and a rewind would void them (they pin version "
            f"{first.pinned_version}): wait until they are scored"
        )


async def _void(connection: AsyncConnection, undone: Sequence[Any], reason: str) -> int:
    """Void the batches and free their groups; returns how many."""
    ids = {row.batch_id: BatchState(row.state) for row in undone}
    items = await connection.execute(
        select(batch_items.c.group_id, batch_items.c.batch_id)
        .where(among(batch_items.c.batch_id, ids), ~batch_items.c.voided)
        .order_by(batch_items.c.group_id)
    )
    freed = items.all()
    for item in freed:
        moved = await transitions.move_group(
            connection, item.group_id, _FREED[ids[item.batch_id]], GroupState.READY
        )
        assert moved, "the queue row is locked: a group of a batch is what its batch is"
    await connection.execute(
        update(batch_items).where(among(batch_items.c.batch_id, ids)).values(voided=True)
    )
    for batch_id, state in ids.items():
        moved = await transitions.move_batch(connection, batch_id, state, BatchState.VOIDED, reason=reason)
        assert moved, "the queue row is locked: no other process closes, commits or voids"
    return len(freed)


async def _lower_floor(connection: AsyncConnection, run_id: int) -> None:
    oldest = (
        select(func.min(groups.c.seq))
        .where(
            groups.c.run_id == run_id,
            ~groups.c.done,
            groups.c.state.in_([GroupState.DISPATCHED, GroupState.READY]),
        )
        .scalar_subquery()
    )
    await connection.execute(
        update(queue)
        .where(queue.c.run_id == run_id)
        .values(floor_seq=func.least(queue.c.floor_seq, func.coalesce(oldest, queue.c.floor_seq)))
    )


async def _supersede(
    connection: AsyncConnection, run_id: int, run: str, target: PolicyVersion, to_batch: int, subject: str
) -> tuple[tuple[int, ...], int | None]:
    """Publish the target's weights under a new number, which supersedes every version of a later batch."""
    later = (
        (policy_versions.c.run_id == run_id)
        & policy_versions.c.superseded_by.is_(None)
        & (policy_versions.c.batch_no > to_batch)
    )
    found = await connection.scalars(
        select(policy_versions.c.version).where(later).order_by(policy_versions.c.version)
    )
    superseded = tuple(found.all())
    if not superseded:
        return (), None
    number = await next_version(connection, run_id)
    await connection.execute(update(policy_versions).where(later).values(superseded_by=number))
    again = NewVersion(
        version=number, parent=target.version, path=target.path, manifest_sha=target.manifest_sha
    )
    await publish(connection, run_id, run, again, subject, target.batch_no)
    return superseded, number
