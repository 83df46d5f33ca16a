"""What people do to a run: each in one transaction, with a row in `actions` that says who, what, on what, before, after and why.

Whoever calls these gives them a transaction of their own. ConfigurationError, one sentence, where it cannot be done as things are.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import FilterReason, GroupState, RolloutState
from orchestrator.course import StageSection
from orchestrator.pool import dead, history
from orchestrator.pool.clean import clean
from orchestrator.pool.course import stage_number
from orchestrator.pool.ending import cancel_group
from orchestrator.pool.tables import actions, queue, rollouts, runs

What = Literal["pause", "resume", "cancel", "reweigh", "drop", "retry", "drain", "undrain"]
PAUSED = (
    "paused by"  # how the reason begins when a person closed admission: only that is opened again by a person
)


async def record(
    connection: AsyncConnection,
    run_id: int,
    *,
    who: str,
    what: What,
    target: str,
    before: Any,
    after: Any,
    reason: str,
) -> None:
    """Append one action. `before` and `after` are JSON values."""
    await connection.execute(
        insert(actions).values(
            run_id=run_id,
            who=clean(who),
            what=what,
            target=target,
            before=before,
            after=after,
            reason=clean(reason),
        )
    )


async def pause(connection: AsyncConnection, run_id: int, who: str, reason: str) -> int:
    """Dispatch no further training group; what is dispatched runs to its end. Returns how many rollouts are not over yet: with 0 the run is
    drained. Evaluations and recordings go on."""
    row = await _locked(connection, run_id)
    if row.state != "active":
        raise ConfigurationError(f"the run is {row.state}: nothing is dispatched any more")
    if not row.admission_open:
        raise ConfigurationError(
            f"admission is closed already: {row.admission_reason or 'no reason is recorded'}"
        )
    said = f"{PAUSED} {who}: {reason}"
    await connection.execute(
        update(queue)
        .where(queue.c.run_id == run_id)
        .values(admission_open=False, admission_reason=clean(said))
    )
    await record(
        connection, run_id, who=who, what="pause", target="admission",
        before={"open": True}, after={"open": False}, reason=reason,
    )  # fmt: skip
    over = (RolloutState.VERIFIED, RolloutState.LOST, RolloutState.WAITING)
    left = select(func.count()).where(rollouts.c.run_id == run_id, rollouts.c.state.not_in(over))
    return int(await connection.scalar(left) or 0)


async def resume(connection: AsyncConnection, run_id: int, who: str, reason: str) -> None:
    """Dispatch again, after a `pause`."""
    row = await _locked(connection, run_id)
    if row.admission_open:
        raise ConfigurationError("admission is open: there is nothing to resume")
    if row.state != "active" or not (row.admission_reason or "").startswith(PAUSED):
        raise ConfigurationError(
            f"admission was not paused by a person: {row.admission_reason or f'the run is {row.state}'}"
        )
    await connection.execute(
        update(queue).where(queue.c.run_id == run_id).values(admission_open=True, admission_reason=None)
    )
    await record(
        connection, run_id, who=who, what="resume", target="admission",
        before={"open": False, "reason": row.admission_reason}, after={"open": True}, reason=reason,
    )  # fmt: skip


async def cancel(
    connection: AsyncConnection, run_id: int, group_id: int, who: str, reason: str
) -> GroupState:
    """Filter an open group as cancelled; its rollouts under way lose their leases. Returns the state that it was in."""
    before = await cancel_group(connection, run_id, group_id)
    await record(
        connection, run_id, who=who, what="cancel", target=f"group {group_id}",
        before={"state": before}, after={"state": GroupState.FILTERED, "reason": FilterReason.CANCELLED}, reason=reason,
    )  # fmt: skip
    return before


async def reweigh(
    connection: AsyncConnection,
    run_id: int,
    course: StageSection,
    weights: Mapping[str, float] | None,
    who: str,
    reason: str,
) -> None:
    """Set the weights of domains for as long as the stage that is on lasts, on any scale; None: as configured again.

    Only domains that the stage takes, each above 0: one of weight 0 would keep its accepted groups waiting, and the run from ending.
    """
    row = await _locked(connection, run_id)
    if row.state != "active":
        raise ConfigurationError(f"the run is {row.state}: nothing is dispatched any more")
    stage = course.all[await stage_number(connection, run_id, course)]
    if weights is not None:
        known = {name for name, share in stage.domains.items() if share > 0} or await _domains(
            connection, run_id
        )
        _check(weights, known, stage.name)
    after = None if weights is None else {"stage": stage.name, "domains": dict(weights)}
    await connection.execute(update(queue).where(queue.c.run_id == run_id).values(shares=after))
    await record(
        connection, run_id, who=who, what="reweigh", target=f"stage {stage.name}",
        before=row.shares or {"stage": stage.name, "domains": stage.domains}, after=after or {"stage": stage.name, "domains": stage.domains},
        reason=reason,
    )  # fmt: skip


def _check(weights: Mapping[str, float], known: set[str], stage: str) -> None:
    unknown = sorted(set(weights) - known)
    if unknown:
        raise ConfigurationError(
            f"stage {stage!r} takes no domain {unknown[0]!r}; it takes: {', '.join(sorted(known)) or 'none so far'}"
        )
    if missing := sorted(known - set(weights)):
        raise ConfigurationError(
            f"say a weight for {missing[0]!r} too: the others would be served in its place"
        )
    bad = [name for name, weight in weights.items() if not (math.isfinite(weight) and 0 < weight <= 1e6)]
    if bad:
        raise ConfigurationError(
            f"the weight of {bad[0]!r} must be above 0 and at most a million: with 0 its accepted groups would wait for ever"
        )


async def drop(connection: AsyncConnection, run_id: int, number: int, who: str, reason: str) -> bool:
    """Forget a dead message for good. False when there is none of that number."""
    return await _gone(connection, run_id, number, "dropped", who, reason)


async def retried(connection: AsyncConnection, run_id: int, number: int, who: str, reason: str) -> bool:
    """A dead message was published again: it is dead no more. False when there is none of that number."""
    return await _gone(connection, run_id, number, "retried", who, reason)


async def resubmitted(
    connection: AsyncConnection, run_id: int, group_id: int, submission: str, who: str, reason: str
) -> None:
    """A dead group's task was submitted again, and accepted as `submission`."""
    await record(
        connection, run_id, who=who, what="retry", target=f"group {group_id}",
        before={"state": GroupState.DEAD}, after={"submission": submission}, reason=reason,
    )  # fmt: skip


async def _gone(
    connection: AsyncConnection,
    run_id: int,
    number: int,
    what: Literal["dropped", "retried"],
    who: str,
    reason: str,
) -> bool:
    if not await dead.drop_message(connection, run_id, number, what, who, reason):
        return False
    await record(
        connection, run_id, who=who, what="drop" if what == "dropped" else "retry", target=f"message {number}",
        before={"state": "dead"}, after={"state": what}, reason=reason,
    )  # fmt: skip
    return True


async def _locked(connection: AsyncConnection, run_id: int) -> Any:
    """The queue row, locked as every dispatch and claim locks it, with the run's state."""
    await history.lock_run(connection, run_id)
    rows = await connection.execute(
        select(queue, runs.c.state)
        .join(runs, runs.c.run_id == queue.c.run_id)
        .where(queue.c.run_id == run_id)
    )
    return rows.one()


async def _domains(connection: AsyncConnection, run_id: int) -> set[str]:
    """The domains of a run whose stage takes whatever is submitted: those of its open groups and of its latest positions."""
    found = await connection.scalars(
        text(
            """SELECT domain FROM groups WHERE run_id = :run AND NOT done AND purpose = 'train'
               UNION SELECT domain FROM groups WHERE run_id = :run AND seq >= (SELECT next_seq - 2000 FROM queue WHERE run_id = :run)"""
        ),
        {"run": run_id},
    )
    return set(found.all())
