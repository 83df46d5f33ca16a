"""/api/steer/…: steering commands of a person. Each command is one transaction with its row in `actions`, except commands over the bus:
these are recorded after the bus accepted them.

| command | body |
|---|---|
| pause, resume | reason |
| cancel | group, reason |
| weights | domains {name: weight} or null (as configured), reason |
| retry | letter (m7 or g7), reason |
| drop | letter (m7), reason |
| drain | kind (runner, gateway, server), id, last (also the last rollout server), reason |
| undrain | kind, id, reason |

Any other key is refused by name.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.dead_letters import LetterKind, parse_letter
from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.contracts.numbers import INT8
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import DrainKind
from orchestrator.pool import draining, steer
from orchestrator.pool.dead_letters import (
    DeadGroup,
    DeadMessage,
    dead_groups,
    dead_messages,
    next_retry,
)
from orchestrator.pool.draining import Drainable
from orchestrator.pool.runs import StoredRun, find_run
from orchestrator.pool.submissions import forget_rejection
from orchestrator.retry import publish_again, submission_of, submit_again
from orchestrator.settings.config import Config
from orchestrator.web.requests import CommandRequest, Refused, config_of, post

T = TypeVar("T")
BUS_S = 5.0
ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result in one sentence."""

    done: str


async def _pause(command: CommandRequest) -> CommandResult:
    left = await _apply(
        command, lambda connection, run: steer.pause(connection, run.run_id, command.who, command.reason)
    )
    return CommandResult(steer.paused(left))


async def _resume(command: CommandRequest) -> CommandResult:
    await _apply(
        command, lambda connection, run: steer.resume(connection, run.run_id, command.who, command.reason)
    )
    return CommandResult(steer.RESUMED)


async def _cancel(command: CommandRequest) -> CommandResult:
    group_id = command.body.get("group")
    if not isinstance(group_id, int) or isinstance(group_id, bool) or not 0 <= group_id <= INT8:
        raise Refused(400, "group must be the number of a group")
    await _apply(
        command,
        lambda connection, run: steer.cancel(connection, run.run_id, group_id, command.who, command.reason),
    )
    return CommandResult(steer.cancelled(group_id))


async def _weights(command: CommandRequest) -> CommandResult:
    if "domains" not in command.body:
        raise Refused(400, "domains must be given: an object of weights, or null for those of the stage")
    given = command.body["domains"]
    if given is not None and not _numbers(given):
        raise Refused(400, 'domains must be an object of weights, as {"coding": 2, "general": 1}, or null')
    weights: Mapping[str, float] | None = given

    async def work(connection: AsyncConnection, run: StoredRun) -> None:
        stage = Config.from_json(run.config).stage
        await steer.reweigh(connection, run.run_id, stage, weights, command.who, command.reason)

    await _apply(command, work)
    return CommandResult(steer.reweighed(weights))


async def _drain(command: CommandRequest) -> CommandResult:
    kind, name = _target(command)
    last = command.body.get("last", False)
    if not isinstance(last, bool):
        raise Refused(400, "last must be true or false")

    async def work(connection: AsyncConnection, run: StoredRun) -> Drainable:
        config = config_of(command.site, run)
        return await draining.drain(
            connection,
            run.run_id,
            kind,
            name,
            command.who,
            command.reason,
            no_progress_s=config.watchdog.no_progress_s,
            reserved=config.servers.evaluation,
            last=last,
            confirmation='send "last": true',
        )

    found = await _apply(command, work)
    return CommandResult(
        f"{found.called[:1].upper()}{found.called[1:]} takes no new work and finishes its current work."
    )


async def _undrain(command: CommandRequest) -> CommandResult:
    kind, name = _target(command)

    async def work(connection: AsyncConnection, run: StoredRun) -> Drainable:
        limit = config_of(command.site, run).watchdog.no_progress_s
        return await draining.undrain(
            connection, run.run_id, kind, name, command.who, command.reason, no_progress_s=limit
        )

    found = await _apply(command, work)
    return CommandResult(f"{found.called[:1].upper()}{found.called[1:]} works again.")


def _target(command: CommandRequest) -> tuple[DrainKind, str]:
    kind, name = command.body.get("kind"), command.body.get("id")
    for known in DrainKind:
        if kind == known and isinstance(name, str) and name and "\0" not in name:
            return known, name
    raise Refused(400, f"kind must be one of {', '.join(DrainKind)}, and id the name of one")


async def _drop(command: CommandRequest) -> CommandResult:
    kind, number = _letter(command)
    if kind is LetterKind.GROUP:
        raise Refused(409, "a dead group is the record of a submission's outcome and cannot be dropped")
    dropped = await _apply(
        command,
        lambda connection, run: steer.drop(connection, run.run_id, number, command.who, command.reason),
    )
    if not dropped:
        raise Refused(404, f"dead letter m{number} does not exist")
    return CommandResult(f"m{number} is dropped.")


async def _retry(command: CommandRequest) -> CommandResult:
    kind, number = _letter(command)

    async def find(connection: AsyncConnection) -> tuple[DeadMessage | DeadGroup, str]:
        run = await _run(connection, command)
        found: list[DeadMessage] | list[DeadGroup] = (
            await dead_messages(connection, run.run_id, number)
            if kind is LetterKind.MESSAGE
            else await dead_groups(connection, run.run_id, number)
        )
        if not found:
            raise Refused(404, f"dead letter {kind}{number} does not exist")
        dead_letter = found[0]
        return dead_letter, await next_retry(connection, run.run_id, dead_letter.submission) if isinstance(
            dead_letter, DeadGroup
        ) else ""

    letter, submission = await command.site.database.read(find)
    nats_url = command.site.config.services.nats_url
    if not nats_url:
        raise ServiceError("no NATS is known here: start the run with `penstock up`, or set NATS_URL")
    try:
        async with NatsBus.connect(nats_url, name="penstock-web", patience_s=BUS_S) as bus:
            if isinstance(letter, DeadMessage):
                if (rejected := submission_of(letter)) is not None:
                    await command.site.database.write(
                        lambda connection: forget_rejection(connection, *rejected)
                    )
                await publish_again(bus, letter)
            else:
                await submit_again(bus, command.run, letter, submission, ANSWER_S)
    except BusError as error:
        raise ServiceError(str(error)) from error
    if isinstance(letter, DeadMessage):
        await _apply(
            command,
            lambda connection, run: steer.retried(
                connection, run.run_id, number, command.who, command.reason
            ),
        )
        return CommandResult(f"m{number} is published again to {letter.subject}.")
    await _apply(
        command,
        lambda connection, run: steer.resubmitted(
            connection, run.run_id, number, submission, command.who, command.reason
        ),
    )
    return CommandResult(f"g{number} is submitted again as {submission}.")


async def _apply(command: CommandRequest, work: Callable[[AsyncConnection, StoredRun], Awaitable[T]]) -> T:
    """`work` in one transaction on the run that the command names. Refused (409) if the current state does not allow it."""

    async def transaction(connection: AsyncConnection) -> T:
        run = await _run(connection, command)
        try:
            return await work(connection, run)
        except ConfigurationError as error:
            raise Refused(409, str(error)) from error

    done = await command.site.database.write(transaction)
    command.site.metrics.actions.labels(command.request.path.rpartition("/")[2]).inc()
    return done


async def _run(connection: AsyncConnection, command: CommandRequest) -> StoredRun:
    run = await find_run(connection, command.run)
    if run is None:
        raise Refused(404, f"run {quoted(command.run)} does not exist in this database")
    return run


def _letter(command: CommandRequest) -> tuple[LetterKind, int]:
    name = command.body.get("letter")
    found = parse_letter(name) if isinstance(name, str) else None
    if found is None:
        raise Refused(400, "letter must be m and the number of a message, or g and that of a group")
    return found


def _numbers(given: object) -> bool:
    return isinstance(given, dict) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in given.values()
    )


ROUTES = [
    post("/api/steer/pause", _pause),
    post("/api/steer/resume", _resume),
    post("/api/steer/cancel", _cancel, ("group",)),
    post("/api/steer/weights", _weights, ("domains",)),
    post("/api/steer/drop", _drop, ("letter",)),
    post("/api/steer/retry", _retry, ("letter",)),
    post("/api/steer/drain", _drain, ("kind", "id", "last")),
    post("/api/steer/undrain", _undrain, ("kind", "id")),
]
