"""Ingest: what gateways, runners and verifier runners say, into Postgres.

| produces | waits for | unblocked by |
|---|---|---|
| steps, results, verdicts; verifications to do; concluded groups | STEPS, RESULTS | gateways and runners, who keep each message until it is here |
"""

from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import RolloutFinished, StepRecorded, VerdictReached, decode
from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.flow.complete import assign_verification, complete_reported, conclude_group, group_of
from orchestrator.flow.consume import consume
from orchestrator.flow.context import Flow
from orchestrator.pool import leases, results
from orchestrator.pool.steps import Decoded, decode_step, ingest


async def ingest_steps(flow: Flow) -> None:
    """Steps, in batches."""

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, str]:
        refused: dict[int, str] = {}
        arrived: dict[int, Decoded] = {}
        for i, delivery in enumerate(deliveries):
            try:
                arrived[i] = decode_step(decode(delivery.body, delivery.schema, StepRecorded))
            except MessageError as error:
                refused[i] = str(error)
        done = await ingest(connection, flow.run_id, list(arrived.values()))
        for i, step in arrived.items():
            if step.key in done.conflicts:
                refused[i] = f"step {step.key} is stored with other content: steps never change"
        if done.waiting:
            await complete_reported(connection, flow, sorted(done.waiting))
        return refused

    await consume(flow, subjects.consume_steps(flow.run), handle, batch=64)


async def ingest_results(flow: Flow) -> None:
    """Rollout results."""

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, str]:
        refused: dict[int, str] = {}
        moved = []
        for i, delivery in enumerate(deliveries):
            try:
                event = decode(delivery.body, delivery.schema, RolloutFinished)
                FailureClass(event.failure_class)
                bytes.fromhex(event.digest)
            except (MessageError, ValueError) as error:
                refused[i] = str(error)
                continue
            if await results.report(connection, flow.run_id, event):
                moved.append(event.rollout)
        if moved:
            await complete_reported(connection, flow, sorted(moved))
        return refused

    await consume(flow, subjects.consume_results_rollout(flow.run), handle, batch=16)


async def ingest_verdicts(flow: Flow) -> None:
    """Verdicts: a reward, or a verifier failure that is tried again."""

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, str]:
        refused: dict[int, str] = {}
        for i, delivery in enumerate(deliveries):
            try:
                event = decode(delivery.body, delivery.schema, VerdictReached)
                failure = FailureClass(event.failure_class)
            except (MessageError, ValueError) as error:
                refused[i] = str(error)
                continue
            if failure is FailureClass.COMPLETED:
                if event.reward is None or not 0.0 <= event.reward <= 1.0:
                    refused[i] = f"VerdictReached: reward is {event.reward}, it must lie in [0, 1]"
                    continue
                if await results.verdict(connection, flow.run_id, event):
                    await conclude_group(connection, flow, await group_of(connection, event.rollout))
            else:
                await verify_again(
                    connection, flow, event.rollout, event.attempt, event.epoch, event.reason or failure
                )
        return refused

    await consume(flow, subjects.consume_results_verdict(flow.run), handle, batch=16)


async def verify_again(
    connection: AsyncConnection, flow: Flow, rollout_id: int, attempt: int, epoch: int, reason: str
) -> None:
    """Another verification of the same artifacts; with the tries used up the member is lost, and never rewarded."""
    delay_s = flow.config.rollout.retry_delay_s
    again = await results.verify_again(connection, rollout_id, epoch, reason=reason, delay_s=delay_s)
    if again is None:
        return
    tries, new_epoch = again
    if tries >= flow.config.queue.max_attempts:
        lost = f"{tries} verifications failed; the last one: {reason}"
        if await leases.lose(
            connection, rollout_id, RolloutState.FINISHED, new_epoch, FailureClass.VERIFIER_FAILURE, lost
        ):
            await conclude_group(connection, flow, await group_of(connection, rollout_id))
        return
    purpose = await leases.purpose_of(connection, rollout_id)
    await assign_verification(
        connection, flow, rollout_id, attempt, new_epoch, purpose, delay_s=delay_s * 2**tries
    )
