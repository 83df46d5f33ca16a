"""Rebuilding the streams towards workers from Postgres: after a wipe of JetStream, and for `penstock reconcile`.

Senders rebuild the streams towards Postgres from their journals.
"""

from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.contracts.events import Event, PolicyPublished
from orchestrator.contracts.states import RolloutState
from orchestrator.pool.dispatch import Assignment, waiting_work
from orchestrator.pool.outbox import enqueue_all
from orchestrator.pool.policy_versions import newest_version
from orchestrator.pool.transact import transact
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dispatcher import assignment
from orchestrator.roles.retry_policy import verification
from orchestrator.runtime.log import get

log = get(__name__)

REBUILT = ("WORK", "POLICY")


async def rebuild(context: OrchestratorContext, stream: str) -> int:
    """Put the messages that `stream` must hold into the outbox again; returns their number. A surplus copy has a stale epoch or an old revision: a
    no-op."""

    async def work(connection: AsyncConnection) -> int:
        match stream:
            case "WORK":
                messages = await _work(connection, context)
            case "POLICY":
                messages = await _policy(connection, context)
            case _:
                messages = []
        await enqueue_all(connection, context.run_id, messages)
        return len(messages)

    rebuilt = await transact(context.engine, work, at="rebuild.commit")
    context.signals.outbox.set()
    log.info("stream.rebuilt", stream=stream, messages=rebuilt)
    return rebuilt


async def remind(
    connection: AsyncConnection, context: OrchestratorContext, *, after_s: float | None = None
) -> int:
    """Put assignments that no worker took for `after_s` (default: `rollout.reassign_after_s`) into the outbox again: an assignment that was delivered
    too often without an ack is a dead letter by now."""
    forgotten = timedelta(seconds=after_s or context.config.rollout.reassign_after_s)
    messages = await _work(connection, context, unchanged_for=forgotten)
    await enqueue_all(connection, context.run_id, messages)
    return len(messages)


async def _work(
    connection: AsyncConnection, context: OrchestratorContext, *, unchanged_for: timedelta | None = None
) -> list[tuple[str, Event]]:
    return [
        assignment(
            context,
            Assignment(
                rollout_id=work.rollout_id, attempt=work.attempt, epoch=work.lease_epoch, pool=work.pool
            ),
        )
        if work.state is RolloutState.QUEUED
        else verification(context, work.rollout_id, work.attempt, work.lease_epoch, work.purpose)
        for work in await waiting_work(connection, context.run_id, unchanged_for)
    ]


async def _policy(connection: AsyncConnection, context: OrchestratorContext) -> list[tuple[str, Event]]:
    newest = await newest_version(connection, context.run_id)
    if newest is None:
        return []
    event = PolicyPublished(
        run=context.run,
        version=newest.version,
        path=newest.path,
        manifest_sha=newest.manifest_sha,
        batch_no=newest.batch_no,
        revision=newest.version,
    )
    return [(subjects.policy(context.run), event)]
