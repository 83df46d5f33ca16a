"""penstock dead: list, show, retry, drop. `m7` is an unusable message, `g7` a group whose attempts are used up."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.terminal import cell
from orchestrator.contracts.dead_letters import LetterKind, parse_letter
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.home import Home
from orchestrator.runtime.person import current_user
from orchestrator.settings.config import Config

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.pool.dead_letters import DeadGroup, DeadMessage

app = typer.Typer(no_args_is_help=True)
T = TypeVar("T")
SHOWN = 60  # characters of a reason in the list
ANSWER_S = 30.0

NO_REASON = "no reason given"
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the history.")]
IdArgument = Annotated[str, typer.Argument(help="As `penstock dead list` shows it: m7 or g7.")]


def _ask(config: Config, work: "Callable[[AsyncConnection, int], Awaitable[T]]") -> T:
    """Run `work` in one transaction of the run."""
    from orchestrator.pool.opened import opened_run
    from orchestrator.pool.transact import once

    async def ask() -> T:
        async with opened_run(config, name="penstock-dead") as (engine, run):
            return await once(engine, lambda connection: work(connection, run.run_id), at="person.commit")

    return anyio.run(ask)


def _parse(identifier: str) -> tuple[LetterKind, int]:
    found = parse_letter(identifier)
    if found is None:
        raise ValueError(
            f"{quoted(identifier)} is not a dead letter: give m and the number of a message, or g and the number of a group"
        )
    return found


async def _find(
    connection: "AsyncConnection", run_id: int, identifier: str, at: str
) -> "DeadMessage | DeadGroup":
    from orchestrator.pool.dead_letters import dead_groups, dead_messages

    kind, number = _parse(identifier)
    found: list[Any] = await (dead_messages if kind is LetterKind.MESSAGE else dead_groups)(
        connection, run_id, number
    )
    if not found:
        raise ValueError(
            f"dead letter {identifier} does not exist: `penstock dead list{at}` shows the existing ones"
        )
    letter: DeadMessage | DeadGroup = found[0]
    return letter


@app.command("list")
def list_(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """List messages and groups that could not be used, with the reason."""
    from orchestrator.pool.dead_letters import dead_lines

    rows = [
        {"id": line.letter, "at": str(line.at), "what": line.what, "reason": line.reason}
        for line in _ask(Home.at(config).connected(), dead_lines)
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo("nothing is dead")
        return
    table = Table("id", "at", "what", "reason")
    for row in rows:
        reason = row["reason"] if len(row["reason"]) <= SHOWN else row["reason"][: SHOWN - 1] + "…"
        table.add_row(row["id"], row["at"][:19], cell(row["what"]), cell(reason))
    tables.print_table(table)


@app.command()
def show(identifier: IdArgument, config: ConfigOption = HERE) -> None:
    """Show one in full, as JSON: a message's body, or a group's attempts with their logs."""
    from dataclasses import asdict

    from orchestrator.pool.dead_letters import DeadMessage, attempts_of

    _parse(identifier)
    home = Home.at(config)

    async def work(connection: "AsyncConnection", run_id: int) -> dict[str, Any]:
        found = await _find(connection, run_id, identifier, home.option)
        if isinstance(found, DeadMessage):
            return {**asdict(found), "body": _readable(found.body)}
        return {
            **asdict(found),
            "attempts": [asdict(each) for each in await attempts_of(connection, found.group_id)],
        }

    typer.echo(json.dumps(_ask(home.connected(), work), indent=2, default=str))


@app.command()
def retry(identifier: IdArgument, config: ConfigOption = HERE, reason: ReasonOption = NO_REASON) -> None:
    """Try again: publish the message again, or submit the group's task again under a new name."""
    from orchestrator.pool.dead_letters import DeadGroup, DeadMessage, next_retry

    _parse(identifier)
    home = Home.at(config)
    resolved = home.connected()

    async def work(connection: "AsyncConnection", run_id: int) -> tuple["DeadMessage | DeadGroup", str, int]:
        found = await _find(connection, run_id, identifier, home.option)
        next_submission = (
            await next_retry(connection, run_id, found.submission) if isinstance(found, DeadGroup) else ""
        )
        return found, next_submission, run_id

    found, next_submission, run_id = _ask(resolved, work)
    if isinstance(found, DeadMessage):
        typer.echo(anyio.run(_publish_again, resolved, found, run_id, reason))
    else:
        typer.echo(anyio.run(_submit_again, resolved, found, next_submission, run_id, reason))


@app.command()
def drop(identifier: IdArgument, config: ConfigOption = HERE, reason: ReasonOption = NO_REASON) -> None:
    """Delete a message for good; the history (`transitions`) keeps who dropped it and why. A group stays: it is the outcome of its
    submission."""
    from orchestrator.pool.steer import drop as drop_message

    kind, number = _parse(identifier)
    if kind is LetterKind.GROUP:
        raise ValueError(f"{identifier} is the record of a submission's outcome and cannot be dropped")
    home = Home.at(config)

    async def work(connection: "AsyncConnection", run_id: int) -> None:
        await _find(connection, run_id, identifier, home.option)
        await drop_message(connection, run_id, number, current_user(), reason)

    _ask(home.connected(), work)
    typer.echo(f"{identifier} is dropped")


async def _publish_again(config: Config, message: "DeadMessage", run_id: int, reason: str) -> str:
    from orchestrator.bus.nats import NatsBus
    from orchestrator.pool.opened import opened
    from orchestrator.pool.steer import retried
    from orchestrator.pool.submissions import forget_rejection
    from orchestrator.pool.transact import once
    from orchestrator.retry import publish_again, submission_of

    async with (
        opened(config.services.database_url, name="penstock-dead") as engine,
        NatsBus.connect(config.services.nats_url, name="penstock-dead") as bus,
    ):
        if (rejected := submission_of(message)) is not None:
            await once(engine, lambda connection: forget_rejection(connection, *rejected), at="person.commit")
        await publish_again(bus, message)
        await once(
            engine,
            lambda connection: retried(connection, run_id, message.number, current_user(), reason),
            at="person.commit",
        )
    return f"m{message.number} is published again to {message.subject}"


async def _submit_again(config: Config, group: "DeadGroup", submission: str, run_id: int, reason: str) -> str:
    from orchestrator.bus.nats import NatsBus
    from orchestrator.pool.opened import opened
    from orchestrator.pool.steer import resubmitted
    from orchestrator.pool.transact import once
    from orchestrator.retry import submit_again

    async with NatsBus.connect(config.services.nats_url, name="penstock-dead") as bus:
        await submit_again(bus, config.run.name, group, submission, ANSWER_S)
    async with opened(config.services.database_url, name="penstock-dead") as engine:
        await once(
            engine,
            lambda connection: resubmitted(
                connection, run_id, group.group_id, submission, current_user(), reason
            ),
            at="person.commit",
        )
    return f"g{group.group_id} is submitted again as {submission}"


def _readable(body: bytes) -> Any:
    """A JSON body as JSON, any other body as text."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "backslashreplace")
