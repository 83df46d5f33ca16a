"""Ingest: reports of gateways, runners and verifier runners, into Postgres.

| produces | waits for | unblocked by |
|---|---|---|
| steps, results, verdicts; verifications to do; concluded groups | STEPS, RESULTS | gateways and runners, which keep each message until it is here |
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import RolloutFinished, StepRecorded, VerdictReached, decode
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import FailureClass
from orchestrator.pool import leases, results, transitions
from orchestrator.pool.ingest import Decoded, Fate, decode_step, ingest, policies_of
from orchestrator.pool.lease_check import why_stale
from orchestrator.pool.policy_versions import published
from orchestrator.pool.transact import NotReady, TransactionEnded, transact
from orchestrator.roles.complete import complete_reported
from orchestrator.roles.conclude import conclude_group
from orchestrator.roles.consume import IDLE_ENDS, Outcome, consume
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.listed_artifacts import with_listed
from orchestrator.roles.metrics import Ended
from orchestrator.roles.retry_policy import verdict_failed
from orchestrator.roles.stale_log import Stale
from orchestrator.roles.untrainable import untrainable, vocabulary_of
from orchestrator.runtime.log import get
from orchestrator.settings.config import Config
from orchestrator.tasks.artifacts import limits_of
from orchestrator.tasks.validate_results import check_result, check_verdict

log = get(__name__)
E = TypeVar("E", StepRecorded, RolloutFinished, VerdictReached)

# Of one fetch: NATS disconnects a client when more than max_pending (64 MiB unless set) waits for it.
PULL_MB = 48

# The ends that a runner may report for an attempt, and a verifier runner for a verification.
ROLLOUT_ENDS = frozenset(FailureClass) - {FailureClass.VERIFIER_FAILURE, FailureClass.POISON}
VERIFICATION_ENDS = frozenset(
    {FailureClass.COMPLETED, FailureClass.VERIFIER_FAILURE, FailureClass.INFRA_FAILURE}
)


def _read(context: OrchestratorContext, delivery: Delivery, expected: type[E]) -> E:
    event = decode(delivery.body, delivery.schema, expected)
    if event.run != context.run:
        raise MessageError(
            f"{expected.__name__} names run {quoted(event.run)} but came on the subject of {quoted(context.run)}"
        )
    return event


def _check_failure(reported: FailureClass, allowed: frozenset[FailureClass]) -> None:
    if reported not in allowed:
        raise MessageError(
            f"failure_class is {quoted(reported.value)}, it must be one of {', '.join(c for c in FailureClass if c in allowed)}"
        )


def steps_per_pull(config: Config) -> int:
    """The number of steps per fetch. With routes, each step may have `gateway.routes_mb`."""
    return max(1, min(64, int(PULL_MB / config.gateway.routes_mb))) if config.trainer.routing_replay else 64


async def ingest_steps(context: OrchestratorContext) -> None:
    """Steps, in batches. A rollout whose result came first is completed in a separate transaction, before the ack."""
    waiting: set[int] = set()
    stale, ended = Stale("steps"), Ended()
    known: set[int] = set()  # published versions; they stay published
    vocabulary = await vocabulary_of(context.config)

    async def unpublished(connection: AsyncConnection, steps: Mapping[int, Decoded]) -> dict[int, str]:
        """No race: a gateway reads a version's row before any of its servers may serve it, so the row is older than the step."""
        versions_by_step = {i: policies_of(step) for i, step in steps.items()}
        if missing := set().union(*versions_by_step.values()) - known:
            known.update(await published(connection, context.run_id, missing))
        return {
            i: f"step {steps[i].key} is of policy version {min(versions - known)}, which was never published"
            for i, versions in versions_by_step.items()
            if versions - known
        }

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
        waiting.clear()
        stale.begin()
        ended.begin()
        refused: dict[int, Outcome] = {}
        arrived: dict[int, Decoded] = {}
        for i, delivery in enumerate(deliveries):
            try:
                arrived[i] = decode_step(_read(context, delivery, StepRecorded))
            except MessageError as error:
                refused[i] = str(error)
        reasons = await unpublished(connection, arrived)
        for i, reason in (reasons | await untrainable(connection, context, arrived, vocabulary)).items():
            refused[i] = reason
            del arrived[i]
        done = await ingest(connection, context.run_id, list(arrived.values()))
        steps = list(arrived.values())
        for i, reason in done.why.items():
            stale.add(steps[i].event, reason)
        for (i, step), fate in zip(arrived.items(), done.fates, strict=True):
            if fate is Fate.CONFLICTING:
                refused[i] = f"step {step.key} is stored with other content: steps never change"
        ended.fates.extend(done.fates)
        waiting.update(done.waiting)
        return refused

    async def complete() -> None:
        await _tell(ended, stale)
        if waiting:
            await _complete(context, sorted(waiting))

    batch = steps_per_pull(context.config)
    await consume(
        context, subjects.consume_steps(context.run), handle, batch=batch, after=complete, at="steps.commit"
    )


async def _complete(context: OrchestratorContext, rollouts: Sequence[int]) -> None:
    """Complete reported rollouts whose last step is stored."""
    try:
        await transact(
            context.engine,
            lambda c: complete_reported(c, context, rollouts),
            at="steps.complete",
            most_idle_ends=IDLE_ENDS,
            wait_ready=False,
        )
    except NotReady:  # steps do not wait for the rewards of a group
        if len(rollouts) > 1:
            for rollout in rollouts:
                await _complete(context, [rollout])
        else:  # the reaper completes it when its lease expires
            log.info("rollout.completed_later", rollout=rollouts[0], waits_for="rewards")
    except TransactionEnded as error:  # the reaper completes them when their leases expire
        log.error("rollouts.not_completed", rollouts=rollouts, error=str(error))


async def ingest_results(context: OrchestratorContext) -> None:
    """Rollout results."""
    stale, ended = Stale("results"), Ended()

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
        await transitions.lock_run(connection, context.run_id)
        stale.begin()
        ended.begin()
        check = partial(_checked_result, context, connection)
        events, refused = await _readable(context, deliveries, RolloutFinished, check)
        moved: list[int] = []
        for event in events:
            if await results.report(connection, context.run_id, event):
                moved.append(event.rollout)
                ended.results.append(event)
            else:
                stale.add(event, await _why(connection, context, event))
        if moved:
            await complete_reported(connection, context, moved)
        return refused

    after = partial(_tell, ended, stale)
    consumer = subjects.consume_results_rollout(context.run)
    await consume(context, consumer, handle, batch=16, after=after, at="results.commit")


async def ingest_verdicts(context: OrchestratorContext) -> None:
    """Verdicts: a reward, or a verifier failure that is retried."""
    stale, ended = Stale("verdicts"), Ended()

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
        await transitions.lock_run(connection, context.run_id)
        stale.begin()
        ended.begin()
        events, refused = await _readable(context, deliveries, VerdictReached, _checked_verdict)
        for event in events:
            if event.failure_class is not FailureClass.COMPLETED:
                taken = await verdict_failed(connection, context, event)
            elif taken := await results.verdict(connection, context.run_id, event):
                await conclude_group(connection, context, await leases.group_of(connection, event.rollout))
            if taken:
                ended.verdicts.append(event)
            else:
                stale.add(event, await _why(connection, context, event))
        return refused

    after = partial(_tell, ended, stale)
    consumer = subjects.consume_results_verdict(context.run)
    await consume(context, consumer, handle, batch=16, after=after, at="verdicts.commit")


async def _readable(
    context: OrchestratorContext,
    deliveries: Sequence[Delivery],
    expected: type[E],
    check: Callable[[E], Awaitable[E]],
) -> tuple[list[E], dict[int, Outcome]]:
    """The events that pass `check`, in the order in which heartbeats lock the rows; and why the other deliveries are refused."""
    events: list[E] = []
    refused: dict[int, Outcome] = {}
    for i, delivery in enumerate(deliveries):
        try:
            events.append(await check(_read(context, delivery, expected)))
        except MessageError as error:
            refused[i] = str(error)
    events.sort(key=attrgetter("rollout"))
    return events, refused


async def _checked_result(
    context: OrchestratorContext, connection: AsyncConnection, event: RolloutFinished
) -> RolloutFinished:
    limits = limits_of(context.config.sandbox)
    event = await with_listed(connection, event, limits)
    check_result(event, limits)
    _check_failure(event.failure_class, ROLLOUT_ENDS)
    if event.resumable and event.failure_class is not FailureClass.INFRA_FAILURE:
        raise MessageError(f"resumable is set with {event.failure_class}: only an infra_failure is resumed")
    return event


async def _checked_verdict(event: VerdictReached) -> VerdictReached:
    _check_failure(event.failure_class, VERIFICATION_ENDS)
    if event.failure_class is FailureClass.COMPLETED and not _in_range(event.reward):
        raise MessageError(f"VerdictReached: reward is {event.reward}, it must lie in [0, 1]")
    check_verdict(event)
    return event


async def _tell(ended: Ended, stale: Stale) -> None:
    """Count and log what a transaction did, after its commit."""
    ended.tell()
    await stale.tell()


async def _why(
    connection: AsyncConnection, context: OrchestratorContext, event: RolloutFinished | VerdictReached
) -> str:
    return await why_stale(connection, context.run_id, event.rollout, event.attempt, event.epoch)


def _in_range(reward: float | None) -> bool:
    return reward is not None and 0.0 <= reward <= 1.0
