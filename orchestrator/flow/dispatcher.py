"""The dispatcher: accepted groups into the queue, as far as admission allows.

| produces | waits for | unblocked by |
|---|---|---|
| seq, assignments in the outbox | accepted groups; room in the queue | intake; concluded groups; committed batches |
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.config import Config
from orchestrator.contracts.events import RolloutAssigned
from orchestrator.flow.context import Flow
from orchestrator.pool.dispatch import Assignment, QueueView, dispatch_other, dispatch_train
from orchestrator.pool.outbox import owe_all
from orchestrator.pool.transact import transact
from orchestrator.scheduling.admission import QueueSettings, choose_domains, dispatchable

PERIOD_S = 0.2


def queue_settings(config: Config) -> QueueSettings:
    """The pure core's view of the configuration. Up to G−1 rollouts wait ready, so that no runner slot stands idle."""
    queue = config.queue
    return QueueSettings(
        in_flight=queue.capacity,
        batch_groups=queue.batch_groups,
        group_size=queue.group_size,
        max_staleness=queue.max_staleness,
        running_rollouts=config.rollout.slots + queue.group_size - 1,
        policy=queue.policy,
        window_fraction=queue.window_fraction,
        min_batch_groups=queue.short_batch,
    )


async def dispatcher(flow: Flow) -> None:
    """Dispatch until cancelled."""
    while True:
        if await transact(flow.engine, lambda connection: dispatch(connection, flow)):
            flow.signals.outbox.set()
        await flow.signals.work.wait(PERIOD_S)


async def dispatch(connection: AsyncConnection, flow: Flow) -> int:
    """Dispatch what admission allows now; returns how many rollouts."""
    settings = queue_settings(flow.config)

    def choose(view: QueueView) -> list[str]:
        shares = flow.config.stage.domains or dict.fromkeys(sorted({*view.accepted, *view.served}), 1.0)
        if not shares:
            return []
        return choose_domains(shares, view.served, view.accepted, dispatchable(view.counts, settings))

    assigned = await dispatch_train(connection, flow.run_id, choose, settings.running_rollouts)
    assigned += await dispatch_other(connection, flow.run_id, flow.config.rollout.slots)
    await owe_all(connection, flow.run_id, [assignment(flow, one) for one in assigned])
    return len(assigned)


def assignment(flow: Flow, given: Assignment) -> tuple[str, RolloutAssigned]:
    """The subject and message that assign a rollout."""
    return subjects.work_rollout(flow.run, given.pool), RolloutAssigned(
        run=flow.run, rollout=given.rollout_id, attempt=given.attempt, epoch=given.epoch
    )
