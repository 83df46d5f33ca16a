"""`penstock tail`: state changes and recorded steps, as they come."""

from datetime import UTC, datetime
from typing import Annotated

import anyio
import msgspec
import typer

from orchestrator.cli import interrupt, tables
from orchestrator.cli.options import HERE, ID, ConfigOption, JsonOption
from orchestrator.cli.reading import reading
from orchestrator.cli.terminal import plain
from orchestrator.contracts.marks import MAIN_AGENT, Finish, ParseStatus
from orchestrator.deploy.home import Home
from orchestrator.runtime.streams import check_reader, ends_with_reader
from orchestrator.settings.config import Config

POLL_INTERVAL_S = 0.5


def tail(
    config: ConfigOption = HERE,
    group: Annotated[
        int | None, typer.Option(parser=ID, metavar="ID", help="Only this group and its rollouts.")
    ] = None,
    rollout: Annotated[int | None, typer.Option(parser=ID, metavar="ID", help="Only this rollout.")] = None,
    steps: Annotated[bool, typer.Option("--steps/--no-steps", help="Also show each recorded step.")] = True,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Begin with this many past state changes.")
    ] = 20,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Continue until Ctrl-C.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Follow a run: every state change and recorded step as it happens, until Ctrl-C: penstock tail -c runs/first --group 201"""
    ends_with_reader()
    if group is not None and rollout is not None:
        raise ValueError("give --group or --rollout, not both")
    resolved = Home.at(config).reading()
    interrupt.run(lambda: _tail(resolved, group, rollout, lines, steps=steps, follow=follow, as_json=as_json))


async def _tail(
    config: Config,
    group: int | None,
    rollout: int | None,
    lines: int,
    *,
    steps: bool,
    follow: bool,
    as_json: bool,
) -> None:
    from orchestrator.queries.changes import Changes, Only

    async with reading(config, "tail") as reader:
        changes = Changes(run_id=reader.run.run_id, only=Only(group, rollout, steps), back=lines)

        def show_outage(why: str) -> None:
            typer.echo(f"{why}; this goes on when it is back", err=True)

        while True:
            # `changes` remembers delivered events: an outage repeats nothing and leaves nothing out.
            for change in await reader.ask_until_answered(changes.more, show_outage):
                print(_json(change) if as_json else _line(change), flush=True)
            if not follow:
                return
            await anyio.sleep(POLL_INTERVAL_S)
            check_reader()


def _json(change: object) -> str:
    return tables.line(msgspec.to_builtins(change) | {"type": type(change).__name__})


def _line(change: object) -> str:
    from orchestrator.queries.changes import StateChange, StepRecord

    if isinstance(change, StateChange):
        position = f"@{change.seq}" if change.seq is not None else ""
        transition = change.after if change.before is None else f"{change.before} → {change.after}"
        columns = f"{change.what} {change.entity_id}{position}", f"{transition:<24}", change.reason or ""
    else:
        assert isinstance(change, StepRecord)
        name = f"step {change.rollout_id}/{change.attempt}/{change.idx}"
        done = f"{change.tokens} tokens, version {change.version}"
        parse_problem = "" if change.parse is ParseStatus.OK else f"[{change.parse}] "
        cut_off = "[cut off] " if change.finish is Finish.LENGTH else ""
        agent = "" if change.agent == MAIN_AGENT else f"{change.agent}: "
        columns = (
            name,
            f"{done:<24}",
            agent + parse_problem + cut_off + (" ".join(change.calls) or change.text).replace("\n", " "),
        )
    at = datetime.fromtimestamp(change.at, UTC).strftime("%H:%M:%S.%f")[:-3] + "Z"
    return plain(f"{at} {columns[0]:<20} {columns[1]} {columns[2]}".rstrip())


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(tail)
