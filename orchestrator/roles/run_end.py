"""Stage end conditions, and the run's end.

| produces | waits for | unblocked by |
|---|---|---|
| ending and ended runs, filtered(run_ended) groups | an end condition; committed batches; evaluations and recordings | the trainer, people; runners |
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RunState
from orchestrator.pool.policy_versions import progress
from orchestrator.pool.run_end import (
    STEP,
    filter_open,
    filter_passed,
    nothing_left,
)
from orchestrator.pool.runs import begin_end, finish_end, first_dispatch_age, lock_intake, state_of
from orchestrator.pool.transact import transact
from orchestrator.roles.context import OrchestratorContext
from orchestrator.runtime.liveness import pause
from orchestrator.runtime.log import get

log = get(__name__)

PERIOD_S = 0.5


async def run_end(context: OrchestratorContext) -> None:
    """Watch until cancelled."""
    while True:
        filtered = await transact(
            context.engine, lambda connection: check_end(connection, context), at="run_end.commit"
        )
        await pause(0.0 if filtered == STEP else PERIOD_S)


async def check_end(connection: AsyncConnection, context: OrchestratorContext) -> int:
    """Start or finish the run's end if due. Filter groups that no stage accepts any more, or that the end leaves open. Returns the number of filtered
    groups, at most `STEP`; at `STEP` there may be more."""
    state = await state_of(connection, context.run_id)
    if state is RunState.ACTIVE:
        done = await progress(connection, context.run_id)
        reason = context.config.stage.reached(
            batches=done.committed_batches,
            train_steps=done.train_steps,
            seconds=await first_dispatch_age(connection, context.run_id),
        )
        if reason is None:
            reason = await nothing_left(connection, context.run_id, context.config.stage)
        if reason is not None and await begin_end(connection, context.run_id, reason):
            log.info("run.ending", reason=reason)
            state = RunState.ENDING
        elif context.config.stage.then:
            passed = await filter_passed(connection, context.run_id, context.config.stage)
            if passed:
                log.info("stage.filtered", groups=passed)
            return passed
    if state is RunState.ENDING:
        await lock_intake(connection, context.run_id)
        filtered = await filter_open(connection, context.run_id)
        if filtered:
            log.info("run.filtered", groups=filtered)
        if filtered < STEP and await finish_end(connection, context.run_id):
            log.info("run.ended")
        return filtered
    return 0
