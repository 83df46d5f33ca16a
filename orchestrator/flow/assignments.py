"""From an assignment on the bus to work under a lease to a result in the journal: the same for rollouts and verifications.

| produces | waits for | unblocked by |
|---|---|---|
| leases (committed before the ack), results (durable before the lease is let go) | WORK; a free slot | the orchestrator; the end of other work |
| nothing while the disk refuses the journal: finished work keeps its lease | the disk | free space |
| nothing while the disk refuses sandboxes: work is given back, which is no try, and its slot is taken | the disk | free space |
| nothing while this worker, or every gateway that it knows, drains: what is not leased yet is handed back | a person | `penstock drain --undo` |

An assignment of a stale epoch, or one that somebody else holds, is acked and counted; what is none is a dead letter, which the orchestrator
keeps (`flow.letters`): a runner may not write there. Of the hours between lease and result the bus knows nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import anyio
import anyio.abc
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import Delivery, Outgoing, Subscription
from orchestrator.bus.journal import JournalFull
from orchestrator.bus.subjects import Consumer
from orchestrator.clock import clock
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import RolloutAssigned, VerifyAssigned, decode
from orchestrator.contracts.states import RolloutState
from orchestrator.flow.measured import WorkerMetrics, working
from orchestrator.flow.plausible import check_assignment
from orchestrator.flow.worker import Worker, while_full
from orchestrator.gateway_client import GatewayDrains
from orchestrator.log import bind, get
from orchestrator.metrics import measured
from orchestrator.pool import history
from orchestrator.pool.culprits import DRAINS, ROOM, SLOT
from orchestrator.pool.leases import Lease, lease
from orchestrator.pool.transact import transact
from orchestrator.progress import current, looping, restartable
from sandboxes.base import SandboxError, SandboxFull, SandboxSpec
from sandboxes.owner import Work as SandboxWork
from sandboxes.owner import working_on

log = get(__name__)

Work = Callable[[Lease], Awaitable[Outgoing]]
"""Does the work of one lease; returns the result to send. Cancelled when the lease is lost: then nothing is sent."""


class Door(Protocol):
    """Whether what the work needs takes more of it."""

    async def shut(self) -> str:
        """What has to come before more work may begin, as a loop waits for it; empty: nothing."""

    async def opens(self) -> None:
        """Wait until that has come."""


class Open:
    """A door that is always open."""

    async def shut(self) -> str:
        return ""

    async def opens(self) -> None:
        return


class Assignments:
    """Serves one kind of assignment with at most `worker.slots` at a time, over all its pools."""

    def __init__(
        self,
        worker: Worker,
        expected: type[RolloutAssigned] | type[VerifyAssigned],
        work: Work,
        door: Door | None = None,
    ) -> None:
        self._worker = worker
        self._orders = worker.orders
        self._door = door or Open()
        self._expected = expected
        self._before = RolloutState.QUEUED if expected is RolloutAssigned else RolloutState.FINISHED
        self._work = work
        self._kind, self._one = (
            ("rollouts", "attempt") if expected is RolloutAssigned else ("verifications", "verification")
        )
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
            current().rests(DRAINS)
            await self._orders.taken_back()
            if needed := await self._door.shut():
                current().rests(needed)
                with self._orders.taking():
                    await self._door.opens()
                continue
            # One at a time: a message that waits here is work that another runner could do. What lies here unleased is handed back.
            async with self._worker.bus.subscribe(consumer, batch=1) as arriving:
                while (delivery := await self._next(arriving)) is not None:
                    if not await self._begin(delivery, tasks):
                        break

    async def _next(self, arriving: Subscription) -> Delivery | None:
        """An assignment, once there is room for it; None when this worker is to drain."""
        delivery: Delivery | None = None
        with self._orders.taking():
            current().rests(SLOT)
            async with self._slots:
                pass  # there is room, but it is not kept for a pool in which nothing is to be done
            current().rests("assignments")
            (delivery,) = await arriving.take(1)
        return delivery

    async def _begin(self, delivery: Delivery, tasks: anyio.abc.TaskGroup) -> bool:
        """Settle one assignment. False when nothing may be begun now: it is handed back."""
        current().works("an assignment")
        try:
            event = decode(delivery.body, delivery.schema, self._expected)
            check_assignment(event, self._worker.run)
        except MessageError as error:
            log.warning(
                "bus.dead_letter", subject=delivery.subject, msg_id=delivery.msg_id, reason=str(error)
            )
            await self._worker.bus.dead_letter(delivery, str(error))
            return True
        if not await self._slot(delivery):
            await delivery.nak()
            return False
        held: Lease | None = None
        try:
            if may := not self._orders.drains and not await self._door.shut() and not self._orders.drains:
                held = await self._lease(event.rollout, event.epoch)
        except BaseException:
            self._slots.release()
            raise
        if held is None:
            self._slots.release()
        else:
            tasks.start_soon(self._hold, held)
        await (delivery.ack() if may else delivery.nak())
        return may

    async def _slot(self, delivery: Delivery) -> bool:
        """Wait for a slot; it is gone only if another pool has taken the last one meanwhile. False when this worker is to drain."""
        while not self._orders.drains:
            with self._orders.taking(), anyio.move_on_after(clock().bus_ack_wait_s / 3):
                current().rests(SLOT)
                await self._slots.acquire()
                current().works("an assignment")
                return True
            await delivery.in_progress()
        return False

    async def _lease(self, rollout_id: int, epoch: int) -> Lease | None:
        worker = self._worker

        async def take(connection: AsyncConnection) -> Lease | None:
            ttl_s = worker.config.rollout.lease_ttl_s
            held = await lease(connection, rollout_id, epoch, worker.owner, ttl_s, before=self._before)
            if held is None:
                await history.count(connection, worker.run_id, "assignments_stale")
            return held

        held = await transact(worker.engine, take, at="lease.taken")
        if held is None:
            log.info("assignment.stale", rollout=rollout_id, epoch=epoch)
        return held

    async def _hold(self, held: Lease) -> None:
        worker = self._worker
        full: SandboxFull | None = None
        drains = False
        try:
            with (
                bind(rollout=held.rollout_id, group=held.group_id, attempt=held.attempt, epoch=held.epoch),
                looping(self._one, forever=False) as loop,
                working(self._one),
                working_on(SandboxWork(worker.run, held.rollout_id, held.attempt, held.epoch, self._one)),
            ):
                log.info("work.begins", purpose=held.purpose)
                with worker.heart.holding(held.rollout_id, held.epoch) as scope:
                    loop.works(f"rollout {held.rollout_id}")
                    try:
                        result = await self._work(held)
                    except SandboxFull as error:
                        full = error
                    except GatewayDrains as error:  # since it was asked last
                        drains = True
                        log.info("work.returned", reason=str(error))
                    else:
                        loop.works(f"the result of rollout {held.rollout_id}", on="disk")
                        await self._send(result)
                if full is not None:
                    loop.works(ROOM, on="disk")
                    log.error(
                        "sandbox.full", error=str(full), consequence="the work is given back, its slot waits"
                    )
                    await worker.heart.return_lease(held.rollout_id, held.epoch)
                    with self._orders.taking():
                        await while_full(self._open_one)
                elif drains:
                    await worker.heart.return_lease(held.rollout_id, held.epoch)
                elif scope.cancelled_caught:
                    measured(WorkerMetrics).lost.labels(self._one).inc()

                    async def lost(connection: AsyncConnection) -> None:
                        await history.count(connection, worker.run_id, "leases_lost")

                    await transact(worker.engine, lost, at="lease.lost")
        finally:
            self._slots.release()

    async def _open_one(self) -> None:
        """Open a sandbox that nobody needs. SandboxFull while there is no room; what else may be wrong, the next work says."""
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
                await anyio.sleep(clock().journal_retry_s)
