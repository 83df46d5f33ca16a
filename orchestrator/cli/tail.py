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
from orchestrator.config import Config
from orchestrator.home import Home

LOOK_S = 0.5


def tail(
    config: ConfigOption = HERE,
    group: Annotated[
        int | None, typer.Option(parser=ID, metavar="ID", help="Only this group and its rollouts.")
    ] = None,
    rollout: Annotated[int | None, typer.Option(parser=ID, metavar="ID", help="Only this rollout.")] = None,
    steps: Annotated[bool, typer.Option("--steps/--no-steps", help="Also each recorded step.")] = True,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Begin with so many past state changes.")
    ] = 20,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on until Ctrl-C.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Follow a run: every state change and recorded step as it comes, until Ctrl-C: penstock tail -c runs/first --group 201"""
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
    from orchestrator.look.changes import Changes, Only

    async with reading(config, "tail") as reader:
        changes = Changes(reader.run.run_id, Only(group, rollout, steps), lines)

        def away(why: str) -> None:
            typer.echo(f"{why}; this goes on when it is back", err=True)

        while True:
            # What was told is remembered by `changes`: an outage repeats nothing and leaves nothing out.
            for change in await reader.ask_until_told(changes.more, away):
                print(_json(change) if as_json else _line(change), flush=True)
            if not follow:
                return
            await anyio.sleep(LOOK_S)


def _json(change: object) -> str:
    return tables.line(msgspec.to_builtins(change) | {"type": type(change).__name__})


def _line(change: object) -> str:
    from orchestrator.look.changes import StateChange, StepRecord

    if isinstance(change, StateChange):
        place = f"@{change.seq}" if change.seq is not None else ""
        moved = change.after if change.before is None else f"{change.before} → {change.after}"
        said = f"{change.what} {change.entity_id}{place}", f"{moved:<24}", change.reason or ""
    else:
        assert isinstance(change, StepRecord)
        name = f"step {change.rollout_id}/{change.attempt}/{change.idx}"
        done = f"{change.tokens} tokens, version {change.version}"
        wrong = "" if change.parse == "ok" else f"[{change.parse}] "
        cut = "[cut off] " if change.finish == "length" else ""
        agent = "" if change.agent == "main" else f"{change.agent}: "
        said = (
            name,
            f"{done:<24}",
            agent + wrong + cut + (" ".join(change.calls) or change.said).replace("\n", " "),
        )
    at = datetime.fromtimestamp(change.at, UTC).strftime("%H:%M:%S.%f")[:-3] + "Z"
    return plain(f"{at} {said[0]:<20} {said[1]} {said[2]}".rstrip())


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(tail)
