"""From an assignment on the bus to work under a lease to a result in the journal: the same for rollouts and verifications.

| produces | waits for | unblocked by |
|---|---|---|
| leases (committed before the ack), results (durable before the lease is released) | WORK; a free slot | the orchestrator; the end of other work |
| nothing while the disk refuses the journal: finished work keeps its lease | the disk | free space |
| nothing while the disk refuses sandboxes: work is returned, which does not count as a try, and its slot stays taken | the disk | free space |
| nothing while this worker, or every gateway it knows, drains: unleased assignments are handed back | a person | `penstock drain --undo` |

A stale assignment, or one that another worker holds, is acked and counted. An invalid one is a dead letter, which the orchestrator
stores (`roles.dead_letters`): a runner may not write there. The bus takes no part between lease and result, which may take hours.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import anyio
import anyio.abc
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError, Delivery, Outgoing, Subscription
from orchestrator.bus.journal import JournalFull
from orchestrator.bus.subjects import Consumer
from orchestrator.bus.suspects import Suspects
from orchestrator.contracts.errors import MessageError, ServiceError
from orchestrator.contracts.events import RolloutAssigned, VerifyAssigned, decode
from orchestrator.contracts.states import RolloutState
from orchestrator.gateway_client import GatewayDrains
from orchestrator.pool import transitions
from orchestrator.pool.leases import Lease, lease
from orchestrator.pool.stall_causes import DRAINS, ROOM, SLOT
from orchestrator.pool.transact import of_content, sentence, transact
from orchestrator.runner.metrics import WorkerMetrics, working
from orchestrator.runner.worker import Worker, while_full
from orchestrator.runtime.liveness import current, restartable, track_loop
from orchestrator.runtime.log import bind, get
from orchestrator.runtime.metrics import measured
from orchestrator.settings.timeouts import timeouts
from orchestrator.tasks.validate_results import check_assignment
from sandboxes.base import SandboxError, SandboxFull, SandboxSpec
from sandboxes.owner import LeasedWork as SandboxWork
from sandboxes.owner import WorkKind, working_on

log = get(__name__)

Work = Callable[[Lease], Awaitable[Outgoing]]
"""Does the work of one lease; returns the result to send. Cancelled when the lease is lost: then nothing is sent."""


class WorkGate(Protocol):
    """Whether the dependency of the work accepts more of it."""

    async def why_closed(self) -> str | None:
        """The condition that more work waits for, as a loop reports it; None: it waits for none."""

    async def wait_open(self) -> None:
        """Wait until the condition holds."""


class _OpenGate:
    """A gate that is always open."""

    async def why_closed(self) -> None:
        return

    async def wait_open(self) -> None:
        return


class Assignments:
    """Serves one kind of assignment with at most `worker.slots` at a time, over all its pools."""

    def __init__(
        self,
        worker: Worker,
        expected: type[RolloutAssigned] | type[VerifyAssigned],
        work: Work,
        *,
        gate: WorkGate | None = None,
    ) -> None:
        self._worker = worker
        self._orders = worker.orders
        self._gate = gate or _OpenGate()
        self._expected = expected
        self._before = RolloutState.QUEUED if expected is RolloutAssigned else RolloutState.FINISHED
        self._work = work
        self._kind, self._one = (
            ("rollouts", WorkKind.ATTEMPT)
            if expected is RolloutAssigned
            else ("verifications", WorkKind.VERIFICATION)
        )
        self._suspects = Suspects()
        self._slots = anyio.Semaphore(worker.slots)
        measured(WorkerMetrics).slots.set(worker.slots)

        unsent = worker.orders.own

        async def left(connection: AsyncConnection) -> int:
            return worker.slots - self._slots.value + await unsent(connection)

        worker.orders.own = left

    async def serve(self, consumers: Sequence[Consumer]) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as tasks:
            for consumer in consumers:
                name = f"{self._kind} {consumer.filter.rpartition('.')[2]}"
                tasks.start_soon(restartable, name, partial(self._serve, consumer, tasks))

    async def _serve(self, consumer: Consumer, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            current().idle(DRAINS)
            await self._orders.until_withdrawn()
            if (needed := await self._gate.why_closed()) is not None:
                current().idle(needed)
                with self._orders.taking():
                    await self._gate.wait_open()
                continue
            # One at a time: another runner could do a message that waits here. Unleased messages here are handed back.
            async with self._worker.bus.subscribe(consumer, batch=1) as arriving:
                while (delivery := await self._next(arriving)) is not None:
                    try:
                        may = await self._begin(delivery, tasks)
                    except ServiceError:
                        raise
                    except Exception as error:  # noqa: BLE001  # counted and logged: one assignment can end only itself
                        await self._failed(delivery, consumer, error)
                        continue
                    if not may:
                        break
                    self._suspects.settled(delivery)

    async def _next(self, arriving: Subscription) -> Delivery | None:
        """An assignment, once there is room for it; None when this worker is to drain."""
        delivery: Delivery | None = None
        with self._orders.taking():
            current().idle(SLOT)
            async with self._slots:
                pass  # there is room, but it is not reserved for a pool without work
            current().idle("assignments")
            (delivery,) = await arriving.take(1)
        return delivery

    async def _begin(self, delivery: Delivery, tasks: anyio.abc.TaskGroup) -> bool:
        """Settle one assignment. False when no work may start now: the assignment is handed back."""
        current().busy("an assignment")
        event = decode(delivery.body, delivery.schema, self._expected)
        check_assignment(event, self._worker.run)
        if not await self._slot(delivery):
            await delivery.nak()
            return False
        held: Lease | None = None
        try:
            if (
                may := not self._orders.draining
                and await self._gate.why_closed() is None
                and not self._orders.draining
            ):
                held = await self._lease(event)
        except BaseException:
            self._slots.release()
            raise
        if held is None:
            self._slots.release()
        else:
            tasks.start_soon(self._hold, held)
        self._suspects.passed += may
        await (delivery.ack() if may else delivery.nak())
        return may

    async def _failed(self, delivery: Delivery, consumer: Consumer, error: Exception) -> None:
        """Refuse an assignment, or have it delivered again."""
        reason = sentence(error) if isinstance(error, DBAPIError) else str(error)
        if not (isinstance(error, MessageError) or of_content(error)):
            measured(WorkerMetrics).errors.labels(self._one).inc()
            wait_s = self._suspects.failed(delivery, last=delivery.deliveries >= consumer.max_deliver)
            log.error("assignment.failed", subject=delivery.subject, again_s=wait_s, exc_info=error)
            if wait_s is not None:
                await delivery.nak(wait_s)
                return
            reason = f"its handling failed {delivery.deliveries} times, the last time with {type(error).__name__}: {reason}"
        log.warning("bus.dead_letter", subject=delivery.subject, msg_id=delivery.msg_id, reason=reason)
        self._suspects.settled(delivery)
        try:
            await self._worker.bus.dead_letter(delivery, reason)
        except BusError as refused:  # it is stored nowhere else, so it comes again
            log.error("dead_letter.refused", subject=delivery.subject, error=str(refused))
            await delivery.nak(timeouts().bus_ack_wait_s)

    async def _slot(self, delivery: Delivery) -> bool:
        """Wait for a slot; there is a wait only if another pool has taken the last one. False when this worker is to drain."""
        while not self._orders.draining:
            with self._orders.taking(), anyio.move_on_after(timeouts().bus_ack_wait_s / 3):
                current().idle(SLOT)
                await self._slots.acquire()
                current().busy("an assignment")
                return True
            await delivery.in_progress()
        return False

    async def _lease(self, event: RolloutAssigned | VerifyAssigned) -> Lease | None:
        worker = self._worker

        async def take(connection: AsyncConnection) -> Lease | None:
            ttl_s = worker.config.rollout.lease_ttl_s
            # Every claim of the message is a condition: a rollout may be another run's in the same database.
            held = await lease(
                connection,
                worker.run_id,
                event.rollout,
                event.epoch,
                worker.owner,
                ttl_s,
                attempt=event.attempt,
                before=self._before,
            )
            if held is None:
                await transitions.count(connection, worker.run_id, "assignments_stale")
            return held

        held = await transact(worker.engine, take, at="lease.taken")
        if held is None:
            log.info("assignment.stale", rollout=event.rollout, epoch=event.epoch)
        return held

    async def _hold(self, held: Lease) -> None:
        worker = self._worker
        full: SandboxFull | None = None
        draining = False
        try:
            with (
                bind(rollout=held.rollout_id, group=held.group_id, attempt=held.attempt, epoch=held.epoch),
                track_loop(self._one, forever=False) as loop,
                working(self._one),
                working_on(
                    SandboxWork(
                        run=worker.run,
                        rollout=held.rollout_id,
                        attempt=held.attempt,
                        epoch=held.epoch,
                        kind=self._one,
                    )
                ),
            ):
                log.info("work.started", purpose=held.purpose)
                with worker.heart.holding(held.rollout_id, held.epoch) as scope:
                    loop.busy(f"rollout {held.rollout_id}")
                    try:
                        result = await self._work(held)
                    except SandboxFull as error:
                        full = error
                    except GatewayDrains as error:  # it has started to drain since the last query
                        draining = True
                        log.info("work.returned", reason=str(error))
                    except ServiceError:
                        raise
                    except Exception as error:  # one assignment can end only itself: its lease runs out, which counts as a try
                        measured(WorkerMetrics).errors.labels(self._one).inc()
                        log.error("work.error", exc_info=error)
                    else:
                        loop.busy(f"the result of rollout {held.rollout_id}", on="disk")
                        await self._send(result)
                if full is not None:
                    loop.busy(ROOM, on="disk")
                    log.error(
                        "sandbox.full", error=str(full), consequence="the work is given back, its slot waits"
                    )
                    await worker.heart.return_lease(held.rollout_id, held.epoch)
                    with self._orders.taking():
                        await while_full(self._open_one)
                elif draining:
                    await worker.heart.return_lease(held.rollout_id, held.epoch)
                elif scope.cancelled_caught:
                    measured(WorkerMetrics).lost.labels(self._one).inc()

                    async def count_lost(connection: AsyncConnection) -> None:
                        await transitions.count(connection, worker.run_id, "leases_lost")

                    await transact(worker.engine, count_lost, at="lease.lost")
        finally:
            self._slots.release()

    async def _open_one(self) -> None:
        """Open an unused sandbox. SandboxFull while the disk is full; other errors are logged, and the next work reports them."""
        try:
            async with self._worker.provider.open(SandboxSpec()):
                pass
        except SandboxFull:
            raise
        except (SandboxError, ValueError) as error:
            log.warning("sandbox.failed", error=str(error))

    async def _send(self, result: Outgoing) -> None:
        while True:
            try:
                await self._worker.courier.send(result)
                return
            except JournalFull as error:
                log.error("journal.full", error=str(error))
                await anyio.sleep(timeouts().journal_retry_s)
