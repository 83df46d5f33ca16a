"""From a reported attempt to a terminal rollout: the decisions between results and steps.

A rollout is complete only when every announced step is in the data pool; until then it waits, and the reaper runs it again if its lease expires.
An infrastructure failure is retried with the same seq, from its recorded steps or as a new attempt, and never becomes a reward.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import FailureClass, Purpose, RolloutState
from orchestrator.pool import leases, results, transitions
from orchestrator.pool.results import Reported
from orchestrator.roles.conclude import conclude_group
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.retry_policy import assign_verification, run_again

RETRIED = frozenset({FailureClass.INFRA_FAILURE})


async def complete_reported(
    connection: AsyncConnection, context: OrchestratorContext, rollout_ids: Sequence[int]
) -> None:
    """Advance every given rollout that is reported and has all its steps; the others wait. May conclude groups."""
    await transitions.lock_run(connection, context.run_id)
    for found in await results.reported(connection, rollout_ids):
        await _complete(connection, context, found)


async def _complete(connection: AsyncConnection, context: OrchestratorContext, found: Reported) -> None:
    if found.failure_class in RETRIED:
        if found.resumable and found.arrived < found.announced:
            return  # steps on their way need not be generated again
        await run_again(
            connection,
            context,
            found.rollout_id,
            found.epoch,
            RolloutState.REPORTED,
            found.reason or found.failure_class,
            resumable=found.resumable and (found.digest_matches or not found.announced),
        )
        return
    if found.failure_class is FailureClass.CANCELLED or (
        found.failure_class is FailureClass.TIMEOUT
        and not context.config.rollout.train_timeouts
        and found.purpose is Purpose.TRAIN
    ):
        if await leases.lose(
            connection,
            found.rollout_id,
            RolloutState.REPORTED,
            found.epoch,
            found.failure_class,
            found.reason or found.failure_class,
        ):
            await conclude_group(connection, context, found.group_id)
        return
    if found.arrived < found.announced:
        return  # the rest is on its way; the report's lease bounds the wait
    if found.arrived > found.announced or not found.digest_matches:
        await transitions.count(connection, context.run_id, "digests_wrong")
        await run_again(
            connection,
            context,
            found.rollout_id,
            found.epoch,
            RolloutState.REPORTED,
            "the stored steps do not have the announced digest",
        )
        return
    epoch = await results.finish(connection, found.rollout_id, found.epoch, found.failure_class)
    if epoch is not None:
        await assign_verification(connection, context, found.rollout_id, found.attempt, epoch, found.purpose)
