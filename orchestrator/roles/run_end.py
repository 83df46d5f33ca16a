"""Stage end conditions, and the run's end.

| produces | waits for | unblocked by |
|---|---|---|
| ending and ended runs, filtered(run_ended) groups | an end condition; committed batches; evaluations and recordings | the trainer, people; runners |
"""

from dataclasses import dataclass, replace
from typing import Final

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RunState
from orchestrator.pool import transitions
from orchestrator.pool.policy_versions import progress
from orchestrator.pool.run_end import (
    STEP,
    filter_open,
    filter_passed,
    nothing_left,
)
from orchestrator.pool.runs import (
    begin_end,
    finish_end,
    first_dispatch_age,
    lock_intake,
    move_first_dispatch,
    state_of,
)
from orchestrator.pool.transact import transact, when_committed
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.reaper import beyond
from orchestrator.runtime.liveness import pause
from orchestrator.runtime.log import get

log = get(__name__)

PERIOD_S = 0.5
LEAST_STEP_S: Final = 5.0  # a clock that runs a little fast or slow is left alone


@dataclass(frozen=True, slots=True)
class Age:
    """Seconds since the run's first dispatch by the database's clock, read between two readings of this process's; 0: nothing was dispatched."""

    before: float
    after: float
    age_s: float

    def step_s(self, earlier: "Age | None") -> float:
        """Seconds by which the database's clock was certainly set since an earlier reading; 0 for less than `LEAST_STEP_S`."""
        if earlier is None or not earlier.age_s or not self.age_s:
            return 0.0
        moved = self.age_s - earlier.age_s
        found = beyond(moved, self.before - earlier.after, self.after - earlier.before)
        return found if abs(found) >= LEAST_STEP_S else 0.0


async def run_end(flow: OrchestratorContext) -> None:
    """Watch until cancelled."""
    timed = flow.config.stage.all[-1].end_seconds > 0
    age: Age | None = None

    async def clocked(connection: AsyncConnection) -> Age:
        return await steady_age(connection, flow.run_id, age)

    async def watch(connection: AsyncConnection) -> int:
        return await look(connection, flow, age.age_s if age else 0.0)

    while True:
        if timed:  # apart, because it may lock the queue's row, and an end locks the run's row first
            age = await transact(flow.engine, clocked, at="run_end.commit")
        filtered = await transact(flow.engine, watch, at="run_end.commit")
        await pause(0.0 if filtered == STEP else PERIOD_S)


async def steady_age(connection: AsyncConnection, run_id: int, earlier: Age | None) -> Age:
    """The run's age without the step that the database's clock has made since an `earlier` look: the start moves with the clock."""
    age = await _age(connection, run_id)
    if not age.step_s(earlier):
        return age
    await transitions.lock_run(connection, run_id)
    age = await _age(connection, run_id)  # another orchestrator may have moved the start
    if step_s := age.step_s(earlier):
        await move_first_dispatch(connection, run_id, step_s)
        when_committed(lambda: log.warning("run.clock_stepped", seconds=round(step_s, 1)))
    return replace(age, age_s=age.age_s - step_s)


async def _age(connection: AsyncConnection, run_id: int) -> Age:
    before = anyio.current_time()
    age_s = await first_dispatch_age(connection, run_id)
    return Age(before, anyio.current_time(), age_s)


async def look(connection: AsyncConnection, flow: OrchestratorContext, seconds: float = 0.0) -> int:
    """Start or finish the run's end if due, `seconds` after its first dispatch. Filter groups that no stage accepts any more, or that the end leaves
    open. Returns the number of filtered groups, at most `STEP`; at `STEP` there may be more."""
    state = await state_of(connection, flow.run_id)
    if state is RunState.ACTIVE:
        done = await progress(connection, flow.run_id)
        reason = flow.config.stage.reached(
            batches=done.committed_batches,
            train_steps=done.train_steps,
            seconds=seconds,
        )
        if reason is None:
            reason = await nothing_left(connection, flow.run_id, flow.config.stage)
        if reason is not None and await begin_end(connection, flow.run_id, reason):
            log.info("run.ending", reason=reason)
            state = RunState.ENDING
        elif flow.config.stage.then:
            passed = await filter_passed(connection, flow.run_id, flow.config.stage)
            if passed:
                log.info("stage.filtered", groups=passed)
            return passed
    if state is RunState.ENDING:
        await lock_intake(connection, flow.run_id)
        filtered = await filter_open(connection, flow.run_id)
        if filtered:
            log.info("run.filtered", groups=filtered)
        if filtered < STEP and await finish_end(connection, flow.run_id):
            log.info("run.ended")
        return filtered
    return 0
