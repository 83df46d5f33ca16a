"""The dispatcher: moves accepted groups into the queue, as far as admission allows.

| produces | waits for | unblocked by |
|---|---|---|
| seq, assignments in the outbox | accepted groups; room in the queue | intake; concluded groups; committed batches |
| nothing while the platform fails most attempts | the circuit breaker | attempts that end well; time |
"""

import math
import time

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.contracts.events import RolloutAssigned
from orchestrator.pool import transitions
from orchestrator.pool.dispatch import (
    Assignment,
    QueueView,
    anything_waits,
    dispatch_other,
    dispatch_train,
    ended_lately,
)
from orchestrator.pool.outbox import enqueue_all
from orchestrator.pool.transact import transact
from orchestrator.roles.context import OrchestratorContext
from orchestrator.runtime.log import get
from orchestrator.scheduling.admission import QueueSettings, choose_domains, dispatchable
from orchestrator.scheduling.breaker import BreakerSettings, halts

log = get(__name__)

PERIOD_S = 0.2
POLL_INTERVAL_S = 1.0


class Breaker:
    """The circuit breaker as the dispatcher sees it. It is evaluated every `POLL_INTERVAL_S`, and its changes are logged."""

    def __init__(self, context: OrchestratorContext) -> None:
        queue = context.config.queue
        self._context = context
        self._settings = BreakerSettings(queue.breaker_rate, queue.breaker_attempts, queue.breaker_window_s)
        self._checked_at = -math.inf
        self.halted = False

    async def check(self) -> bool:
        """Whether admission is halted."""
        if time.monotonic() - self._checked_at < POLL_INTERVAL_S:
            return self.halted
        ended, failed = await transact(
            self._context.engine,
            lambda connection: ended_lately(connection, self._context.run_id, self._settings.window_s),
            at="orchestrator.read",
        )
        self._checked_at, before = time.monotonic(), self.halted
        self.halted = halts(ended, failed, self._settings)
        if self.halted and not before:
            log.error(
                "admission.halted",
                ended=ended,
                infra_failures=failed,
                within_s=self._settings.window_s,
                consequence="nothing is dispatched until attempts end well again; look for their reasons in attempts.reason",
            )
            await transact(
                self._context.engine,
                lambda connection: transitions.count(connection, self._context.run_id, "admission_halted"),
                at="breaker.commit",
            )
        elif before and not self.halted:
            log.info("admission.resumed", ended=ended, infra_failures=failed)
        return self.halted


async def dispatcher(context: OrchestratorContext) -> None:
    """Dispatch until cancelled."""
    breaker = Breaker(context)
    while True:
        if not await breaker.check():
            dispatched = await transact(
                context.engine, lambda connection: dispatch(connection, context), at="dispatcher.commit"
            )
            if dispatched:
                context.signals.outbox.set()
        await context.signals.work.wait(PERIOD_S)


async def dispatch(connection: AsyncConnection, context: OrchestratorContext) -> int:
    """Dispatch as much as admission allows now; returns the number of rollouts."""
    if not await anything_waits(connection, context.run_id):
        return 0
    settings = QueueSettings.of(context.config)

    def choose(view: QueueView) -> list[str]:
        assert view.stage is not None
        shares = view.stage.domains or dict.fromkeys(sorted({*view.accepted, *view.served}), 1.0)
        if not shares:
            return []
        return choose_domains(shares, view.served, view.accepted, dispatchable(view.counts, settings))

    assigned = await dispatch_train(
        connection, context.run_id, choose, settings.running_rollouts, context.config.stage
    )
    assigned += await dispatch_other(
        connection, context.run_id, context.config.rollout.slots, context.config.stage
    )
    await enqueue_all(connection, context.run_id, [assignment(context, one) for one in assigned])
    return len(assigned)


def assignment(context: OrchestratorContext, given: Assignment) -> tuple[str, RolloutAssigned]:
    """The subject and message that assign a rollout."""
    return subjects.work_rollout(context.run, given.pool), RolloutAssigned(
        run=context.run, rollout=given.rollout_id, attempt=given.attempt, epoch=given.epoch
    )
