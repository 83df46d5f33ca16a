"""Actions of people on a run. Each is one transaction, with a row in `actions`: who, what, target, before, after and why.

The caller provides a transaction for each call. ConfigurationError, one sentence, if an action is not possible now.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import FilterReason, GroupState, RolloutState, RunState
from orchestrator.pool import dead_letters, transitions
from orchestrator.pool.curriculum import stage_number
from orchestrator.pool.dead_letters import LetterEnd
from orchestrator.pool.run_end import cancel_group
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import actions, queue, rollouts, runs
from orchestrator.settings.curriculum import StageSection


class Action(StrEnum):
    """The act of a person on a run."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    REWEIGH = "reweigh"
    DROP = "drop"
    RETRY = "retry"
    DRAIN = "drain"
    UNDRAIN = "undrain"


# The beginning of the reason if a person closed admission: only then may a person reopen it.
PAUSED = "paused by"


RESUMED = "Admission is open again."


def paused(left: int) -> str:
    """The message after a pause; `left` as `pause` returns it."""
    if left:
        return f"Admission is paused; {left} rollouts run to their end."
    return "Admission is paused; the run is drained."


def cancelled(group_id: int) -> str:
    """The message after a cancellation."""
    return f"Group {group_id} is cancelled."


def reweighed(weights: Mapping[str, float] | None) -> str:
    """The message after new weights; None: the weights of the stage's configuration."""
    if weights is None:
        return "The stage's own weights hold again."
    return "The new weights hold while this stage is on."


async def record(
    connection: AsyncConnection,
    run_id: int,
    *,
    who: str,
    what: Action,
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
    """Dispatch no further training group; dispatched groups finish. Returns how many rollouts are still unfinished: with 0 the run is
    drained. Evaluations and recordings continue."""
    row = await _locked(connection, run_id)
    if row.state != RunState.ACTIVE:
        raise ConfigurationError(f"the run is {row.state}: nothing is dispatched any more")
    if not row.admission_open:
        raise ConfigurationError(
            f"admission is closed already: {row.admission_reason or 'no reason is recorded'}"
        )
    admission_reason = f"{PAUSED} {who}: {' '.join(reason.split())}"  # other sentences repeat it
    await connection.execute(
        update(queue)
        .where(queue.c.run_id == run_id)
        .values(admission_open=False, admission_reason=clean(admission_reason))
    )
    await record(
        connection,
        run_id,
        who=who,
        what=Action.PAUSE,
        target="admission",
        before={"open": True},
        after={"open": False},
        reason=reason,
    )
    over = (RolloutState.VERIFIED, RolloutState.LOST, RolloutState.WAITING)
    unfinished = select(func.count()).where(rollouts.c.run_id == run_id, rollouts.c.state.not_in(over))
    return int(await connection.scalar(unfinished) or 0)


async def resume(connection: AsyncConnection, run_id: int, who: str, reason: str) -> None:
    """Dispatch again, after a `pause`."""
    row = await _locked(connection, run_id)
    if row.admission_open:
        raise ConfigurationError("admission is open: there is nothing to resume")
    if row.state != RunState.ACTIVE or not (row.admission_reason or "").startswith(PAUSED):
        raise ConfigurationError(
            f"admission was not paused by a person: {row.admission_reason or f'the run is {row.state}'}"
        )
    await connection.execute(
        update(queue).where(queue.c.run_id == run_id).values(admission_open=True, admission_reason=None)
    )
    await record(
        connection,
        run_id,
        who=who,
        what=Action.RESUME,
        target="admission",
        before={"open": False, "reason": row.admission_reason},
        after={"open": True},
        reason=reason,
    )


async def cancel(
    connection: AsyncConnection, run_id: int, group_id: int, who: str, reason: str
) -> GroupState:
    """Filter an open group as cancelled; its running rollouts lose their leases. Returns its previous state."""
    old_state = await cancel_group(connection, run_id, group_id)
    await record(
        connection,
        run_id,
        who=who,
        what=Action.CANCEL,
        target=f"group {group_id}",
        before={"state": old_state},
        after={"state": GroupState.FILTERED, "reason": FilterReason.CANCELLED},
        reason=reason,
    )
    return old_state


async def reweigh(
    connection: AsyncConnection,
    run_id: int,
    stages: StageSection,
    weights: Mapping[str, float] | None,
    who: str,
    reason: str,
) -> None:
    """Set the weights of domains for the rest of the current stage, on any scale; None: as configured.

    Accepts only domains of the stage, each above 0: a weight of 0 would keep the domain's accepted groups waiting, and the run from ending.
    """
    row = await _locked(connection, run_id)
    if row.state != RunState.ACTIVE:
        raise ConfigurationError(f"the run is {row.state}: nothing is dispatched any more")
    stage = stages.all[await stage_number(connection, run_id, stages)]
    if weights is not None:
        domains = {name for name, share in stage.domains.items() if share > 0} or await _domains(
            connection, run_id
        )
        _check(weights, domains, stage.name)
    shares = None if weights is None else {"stage": stage.name, "domains": dict(weights)}
    await connection.execute(update(queue).where(queue.c.run_id == run_id).values(shares=shares))
    await record(
        connection,
        run_id,
        who=who,
        what=Action.REWEIGH,
        target=f"stage {stage.name}",
        before=row.shares or {"stage": stage.name, "domains": stage.domains},
        after=shares or {"stage": stage.name, "domains": stage.domains},
        reason=reason,
    )


def _check(weights: Mapping[str, float], known: set[str], stage: str) -> None:
    unknown = sorted(set(weights) - known)
    if unknown:
        raise ConfigurationError(
            f"stage {quoted(stage)} takes no domain {quoted(unknown[0])}; it takes: {', '.join(sorted(known)) or 'none so far'}"
        )
    if missing := sorted(known - set(weights)):
        raise ConfigurationError(
            f"say a weight for {', '.join(map(quoted, missing))} too: without one, the others would be served in its place"
        )
    invalid = [name for name, weight in weights.items() if not 0 < weight <= 1e6]
    if invalid:
        raise ConfigurationError(
            f"the weight of {quoted(invalid[0])} must be above 0 and at most a million: with 0 its accepted groups would wait forever"
        )


async def drop(connection: AsyncConnection, run_id: int, number: int, who: str, reason: str) -> bool:
    """Delete a dead message for good. False if no message has that number."""
    return await _gone(connection, run_id, number, LetterEnd.DROPPED, who, reason)


async def retried(connection: AsyncConnection, run_id: int, number: int, who: str, reason: str) -> bool:
    """Record that a dead message was published again and is no longer dead. False if no message has that number."""
    return await _gone(connection, run_id, number, LetterEnd.RETRIED, who, reason)


async def resubmitted(
    connection: AsyncConnection, run_id: int, group_id: int, submission: str, who: str, reason: str
) -> None:
    """Record that a dead group's task was submitted again and accepted as `submission`."""
    await record(
        connection,
        run_id,
        who=who,
        what=Action.RETRY,
        target=f"group {group_id}",
        before={"state": GroupState.DEAD},
        after={"submission": submission},
        reason=reason,
    )


async def _gone(
    connection: AsyncConnection,
    run_id: int,
    number: int,
    end: LetterEnd,
    who: str,
    reason: str,
) -> bool:
    if not await dead_letters.drop_message(connection, run_id, number, end, who, reason):
        return False
    await record(
        connection,
        run_id,
        who=who,
        what=Action.DROP if end is LetterEnd.DROPPED else Action.RETRY,
        target=f"message {number}",
        before={"state": "dead"},
        after={"state": end},
        reason=reason,
    )
    return True


async def _locked(connection: AsyncConnection, run_id: int) -> Any:
    """The queue row, locked like in every dispatch and claim, with the run's state."""
    await transitions.lock_run(connection, run_id)
    rows = await connection.execute(
        select(queue, runs.c.state)
        .join(runs, runs.c.run_id == queue.c.run_id)
        .where(queue.c.run_id == run_id)
    )
    return rows.one()


async def _domains(connection: AsyncConnection, run_id: int) -> set[str]:
    """The domains of a run whose stage takes every task: those of its open groups and of its latest positions."""
    found = await connection.scalars(
        text(
            """SELECT domain FROM groups WHERE run_id = :run AND NOT done AND purpose = 'train'
               UNION SELECT domain FROM groups WHERE run_id = :run AND seq >= (SELECT next_seq - 2000 FROM queue WHERE run_id = :run)"""
        ),
        {"run": run_id},
    )
    return set(found.all())
