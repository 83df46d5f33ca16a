"""The policy after a failure, for attempts and verifications alike: the same work again, a new attempt, or the end of the rollout.

| failed | again | after `queue.max_attempts` |
|---|---|---|
| an attempt, not by its policy | resumed from its recorded steps, or as a new attempt with the same seq | lost as poison |
| a verification | over the same artifacts, with the same draws | lost as verifier failure; with reward 0 if its programs are the cause |

A lease that was given back does not count as a failure. Each retry gets a new epoch and, in the outbox, the assignment for it.
"""

from functools import partial

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.contracts.events import VerdictReached, VerifyAssigned
from orchestrator.contracts.states import FailureClass, GroupState, Purpose, RolloutState
from orchestrator.pool import groups as pool_groups
from orchestrator.pool import leases, results, resumes, transitions
from orchestrator.pool.dispatch import Assignment
from orchestrator.pool.outbox import enqueue
from orchestrator.pool.transact import when_committed
from orchestrator.roles.conclude import conclude_group
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dispatcher import assignment
from orchestrator.roles.metrics import ordered_again
from orchestrator.runtime.backoff import doubled
from orchestrator.runtime.log import get

log = get(__name__)


async def run_again(
    connection: AsyncConnection,
    context: OrchestratorContext,
    rollout_id: int,
    epoch: int,
    before: RolloutState,
    reason: str,
    *,
    resumable: bool = False,
    given_back: bool = False,
) -> None:
    """Resume the attempt if possible, otherwise start a new one. With all attempts used up, the rollout is lost as poison. Retries get a new epoch
    and a delay that doubles (`backoff.doubled`). Returned leases do not count as failures."""
    if resumable and await _resume(connection, context, rollout_id, epoch, before, reason, given_back):
        return
    failed = await leases.failures(connection, rollout_id)
    if failed >= context.config.queue.max_attempts:
        lost = f"{failed} attempts failed; the last one: {reason}"
        if await leases.lose(connection, rollout_id, before, epoch, FailureClass.POISON, lost):
            await conclude_group(connection, context, await leases.group_of(connection, rollout_id))
        return
    delay_s = doubled(context.config.rollout.retry_delay_s, failed - 1)
    retried = await leases.retry(connection, rollout_id, before, epoch, reason=reason, delay_s=delay_s)
    if retried is None:
        return
    ordered_again("attempt", FailureClass.INFRA_FAILURE)
    _say("rollout.retry", rollout=rollout_id, attempt=retried[0], epoch=retried[1], reason=reason)
    await _assign(connection, context, rollout_id, retried[0], retried[1], delay_s)


async def _resume(
    connection: AsyncConnection,
    context: OrchestratorContext,
    rollout_id: int,
    epoch: int,
    before: RolloutState,
    reason: str,
    given_back: bool,
) -> bool:
    """Run the same attempt again from its recorded steps. False: it cannot be resumed."""
    section = context.config.rollout
    resumed = await resumes.resume(
        connection,
        rollout_id,
        before,
        epoch,
        reason=reason,
        given_back=given_back,
        most=section.max_resumes,
        retry_delay_s=section.retry_delay_s,
    )
    if resumed is None:
        return False
    ordered_again("resume", FailureClass.INFRA_FAILURE)
    _say(
        "rollout.resume",
        rollout=rollout_id,
        attempt=resumed.attempt,
        epoch=resumed.epoch,
        steps=resumed.steps,
        reason=reason,
    )
    await _assign(connection, context, rollout_id, resumed.attempt, resumed.epoch, resumed.delay_s)
    return True


async def _assign(
    connection: AsyncConnection,
    context: OrchestratorContext,
    rollout_id: int,
    attempt: int,
    epoch: int,
    delay_s: float,
) -> None:
    pool = await leases.pool_of(connection, rollout_id)
    subject, event = assignment(
        context, Assignment(rollout_id=rollout_id, attempt=attempt, epoch=epoch, pool=pool)
    )
    await enqueue(connection, context.run_id, subject, event, delay_s=delay_s)
    context.signals.outbox.set()


async def verdict_failed(
    connection: AsyncConnection, context: OrchestratorContext, event: VerdictReached
) -> bool:
    """Verify again with the same draws. After the last try the rollout is lost, with two exceptions that get reward 0 and stay in their group: the
    agent's programs ran in the verification, or the artifacts are the reason why the tests reached no verdict."""
    reason = event.reason or event.failure_class
    if event.programs or event.left:
        tries = 1 + await results.verify_tries(connection, event.rollout)
        if tries >= context.config.queue.max_attempts:
            why = "programs under test ran" if event.programs else "the tests reach a verdict over nothing"
            explanation = f"reward 0: {why}, and {tries} verifications failed; the last one: {reason}"
            answered = msgspec.structs.replace(
                event,
                failure_class=FailureClass.COMPLETED,
                reward=0.0,
                reason=explanation,
                log=f"{explanation}\n{event.log}",
            )
            if taken := await results.verdict(connection, context.run_id, answered):
                await conclude_group(connection, context, await leases.group_of(connection, event.rollout))
            return taken
    return await verify_again(connection, context, event.rollout, event.attempt, event.epoch, reason)


async def verify_again(
    connection: AsyncConnection,
    context: OrchestratorContext,
    rollout_id: int,
    attempt: int,
    epoch: int,
    reason: str,
    *,
    given_back: bool = False,
) -> bool:
    """Verify the same artifacts again. With the tries used up the member is lost and never rewarded. Returned leases do not count as tries and have
    no delay. False (counted) for a stale epoch."""
    delay_s = 0.0 if given_back else context.config.rollout.retry_delay_s
    again = await results.verify_again(
        connection,
        context.run_id,
        rollout_id,
        attempt,
        epoch,
        reason=reason,
        delay_s=delay_s,
        tried=not given_back,
    )
    if again is None:
        await transitions.count(connection, context.run_id, "verdicts_stale")
        return False
    tries, new_epoch = again
    if tries >= context.config.queue.max_attempts:
        lost = f"{tries} verifications failed; the last one: {reason}"
        if await leases.lose(
            connection, rollout_id, RolloutState.FINISHED, new_epoch, FailureClass.VERIFIER_FAILURE, lost
        ):
            await conclude_group(connection, context, await leases.group_of(connection, rollout_id))
        return True
    ordered_again("verification", FailureClass.VERIFIER_FAILURE)
    purpose = await leases.purpose_of(connection, rollout_id)
    await assign_verification(
        connection, context, rollout_id, attempt, new_epoch, purpose, delay_s=doubled(delay_s, tries)
    )
    return True


async def assign_verification(
    connection: AsyncConnection,
    context: OrchestratorContext,
    rollout_id: int,
    attempt: int,
    epoch: int,
    purpose: Purpose,
    *,
    delay_s: float = 0.0,
) -> None:
    """Put an assignment for this epoch into the outbox, for the verifier runners."""
    subject, event = verification(context, rollout_id, attempt, epoch, purpose)
    await enqueue(connection, context.run_id, subject, event, delay_s=delay_s)
    context.signals.outbox.set()


def verification(
    context: OrchestratorContext, rollout_id: int, attempt: int, epoch: int, purpose: Purpose
) -> tuple[str, VerifyAssigned]:
    """The subject and message that assign a verification."""
    return subjects.work_verify(context.run, subjects.pool_for(purpose)), VerifyAssigned(
        run=context.run, rollout=rollout_id, attempt=attempt, epoch=epoch
    )


async def give_up(
    connection: AsyncConnection,
    context: OrchestratorContext,
    rollout_id: int,
    before: RolloutState,
    epoch: int,
    reason: str,
) -> None:
    """End a rollout that cannot be continued because our own code fails for it. Its group becomes dead without rewards, and its other rollouts are
    cancelled."""
    await transitions.count(connection, context.run_id, "rollouts_given_up")
    if await leases.lose(connection, rollout_id, before, epoch, FailureClass.POISON, reason):
        group_id = await leases.group_of(connection, rollout_id)
        await leases.cancel_members(connection, [group_id], reason)
        await pool_groups.conclude(connection, group_id, GroupState.DEAD, reason)
        context.signals.work.set()


def _say(event: str, **facts: object) -> None:
    """Log a line once the transaction is committed."""
    when_committed(partial(log.info, event, **facts))
