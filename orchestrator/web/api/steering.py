"""/api/steer/…: what a person tells the run to do. Each order is one transaction with its row in `actions`, but for what goes over the bus,
which is recorded once the bus has it.

| order | body |
|---|---|
| pause, resume | reason |
| cancel | group, reason |
| weights | domains {name: weight} or null (as configured), reason |
| retry | letter (m7 or g7), reason |
| drop | letter (m7), reason |
| drain | kind (runner, gateway, server), id, last (also the last rollout server), reason |
| undrain | kind, id, reason |
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError
from orchestrator.bus.nats import NatsBus
from orchestrator.config import Config
from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.contracts.numbers import INT8
from orchestrator.pool import draining, steer
from orchestrator.pool.dead import DeadGroup, DeadMessage, dead_groups, dead_messages, next_retry
from orchestrator.pool.runs import Run, find_run
from orchestrator.pool.submissions import forget_rejection
from orchestrator.retry import publish_again, submission_of, submit_again
from orchestrator.web.asked import Order, Refused
from orchestrator.web.asked import steer as steered

T = TypeVar("T")
BUS_S = 5.0
ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, in one sentence."""

    done: str


async def _pause(order: Order) -> Done:
    left = await _told(
        order, lambda connection, run: steer.pause(connection, run.run_id, order.who, order.reason)
    )
    return Done(
        f"Admission is paused; {left} rollouts run to their end."
        if left
        else "Admission is paused; the run is drained."
    )


async def _resume(order: Order) -> Done:
    await _told(order, lambda connection, run: steer.resume(connection, run.run_id, order.who, order.reason))
    return Done("Admission is open again.")


async def _cancel(order: Order) -> Done:
    group_id = order.body.get("group")
    if not isinstance(group_id, int) or isinstance(group_id, bool) or not 0 <= group_id <= INT8:
        raise Refused(400, "group must be the number of a group")
    await _told(
        order, lambda connection, run: steer.cancel(connection, run.run_id, group_id, order.who, order.reason)
    )
    return Done(f"Group {group_id} is cancelled.")


async def _weights(order: Order) -> Done:
    given = order.body.get("domains")
    if given is not None and not _numbers(given):
        raise Refused(400, 'domains must be an object of weights, as {"coding": 2, "general": 1}, or null')
    weights: Mapping[str, float] | None = given

    async def work(connection: AsyncConnection, run: Run) -> None:
        stage = Config.from_json(run.config).stage
        await steer.reweigh(connection, run.run_id, stage, weights, order.who, order.reason)

    await _told(order, work)
    return Done(
        "The stage's own weights hold again."
        if weights is None
        else "The new weights hold while this stage is on."
    )


async def _drain(order: Order) -> Done:
    kind, name = _drainable(order)
    config, last = order.site.config, order.body.get("last", False)
    if not isinstance(last, bool):
        raise Refused(400, "last must be true or false")
    found = await _told(
        order,
        lambda connection, run: draining.drain(
            connection, run.run_id, kind, name, order.who, order.reason,
            no_progress_s=config.watchdog.no_progress_s, reserved=config.servers.evaluation, last=last,
        ),
    )  # fmt: skip
    return Done(f"{found.called[:1].upper()}{found.called[1:]} takes nothing new; what it has ends.")


async def _undrain(order: Order) -> Done:
    kind, name = _drainable(order)
    limit = order.site.config.watchdog.no_progress_s
    found = await _told(
        order,
        lambda connection, run: draining.undrain(
            connection, run.run_id, kind, name, order.who, order.reason, no_progress_s=limit
        ),
    )
    return Done(f"{found.called[:1].upper()}{found.called[1:]} works again.")


def _drainable(order: Order) -> tuple[draining.Kind, str]:
    kind, name = order.body.get("kind"), order.body.get("id")
    for known in draining.KINDS:
        if kind == known and isinstance(name, str) and name and "\0" not in name:
            return known, name
    raise Refused(400, f"kind must be one of {', '.join(draining.KINDS)}, and id the name of one")


async def _drop(order: Order) -> Done:
    kind, number = _letter(order)
    if kind == "g":
        raise Refused(409, "a dead group is the record of what became of a submission, and stays")
    dropped = await _told(
        order, lambda connection, run: steer.drop(connection, run.run_id, number, order.who, order.reason)
    )
    if not dropped:
        raise Refused(404, f"there is no dead letter m{number}")
    return Done(f"m{number} is dropped.")


async def _retry(order: Order) -> Done:
    kind, number = _letter(order)

    async def find(connection: AsyncConnection) -> tuple[DeadMessage | DeadGroup, str]:
        run = await _run(connection, order)
        found: list[DeadMessage] | list[DeadGroup] = (
            await dead_messages(connection, run.run_id, number)
            if kind == "m"
            else await dead_groups(connection, run.run_id, number)
        )
        if not found:
            raise Refused(404, f"there is no dead letter {kind}{number}")
        one = found[0]
        return one, await next_retry(connection, run.run_id, one.submission) if isinstance(
            one, DeadGroup
        ) else ""

    letter, submission = await order.site.database.read(find)
    nats_url = order.site.config.services.nats_url
    if not nats_url:
        raise ServiceError("no NATS is known here: start the run with `penstock up`, or set NATS_URL")
    try:
        async with NatsBus.connect(nats_url, name="penstock-web", patience_s=BUS_S) as bus:
            if isinstance(letter, DeadMessage):
                if (rejected := submission_of(letter)) is not None:
                    await order.site.database.write(
                        lambda connection: forget_rejection(connection, *rejected)
                    )
                await publish_again(bus, letter)
            else:
                await submit_again(bus, order.run, letter, submission, ANSWER_S)
    except BusError as error:
        raise ServiceError(str(error)) from error
    if isinstance(letter, DeadMessage):
        await _told(
            order,
            lambda connection, run: steer.retried(connection, run.run_id, number, order.who, order.reason),
        )
        return Done(f"m{number} is published again to {letter.subject}.")
    await _told(
        order,
        lambda connection, run: steer.resubmitted(
            connection, run.run_id, number, submission, order.who, order.reason
        ),
    )
    return Done(f"g{number} is submitted again as {submission}.")


async def _told(order: Order, work: Callable[[AsyncConnection, Run], Awaitable[T]]) -> T:
    """`work` in one transaction on the run that the order is about. Refused (409) where it cannot be done as things are."""

    async def within(connection: AsyncConnection) -> T:
        run = await _run(connection, order)
        try:
            return await work(connection, run)
        except ConfigurationError as error:
            raise Refused(409, str(error)) from error

    done = await order.site.database.write(within)
    order.site.metrics.actions.labels(order.request.path.rpartition("/")[2]).inc()
    return done


async def _run(connection: AsyncConnection, order: Order) -> Run:
    run = await find_run(connection, order.run)
    if run is None:
        raise Refused(404, f"there is no run {order.run!r} in this database")
    return run


def _letter(order: Order) -> tuple[str, int]:
    name = order.body.get("letter")
    if (
        not isinstance(name, str)
        or name[:1] not in ("m", "g")
        or not (name[1:].isascii() and name[1:].isdigit())
        or len(name) > 19
    ):
        raise Refused(400, "letter must be m and the number of a message, or g and that of a group")
    return name[0], int(name[1:])


def _numbers(given: object) -> bool:
    return isinstance(given, dict) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in given.values()
    )


ROUTES = [
    steered("/api/steer/pause", _pause),
    steered("/api/steer/resume", _resume),
    steered("/api/steer/cancel", _cancel),
    steered("/api/steer/weights", _weights),
    steered("/api/steer/drop", _drop),
    steered("/api/steer/retry", _retry),
    steered("/api/steer/drain", _drain),
    steered("/api/steer/undrain", _undrain),
]
