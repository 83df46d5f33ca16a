"""`penstock logs`: what the processes of this directory wrote, in one order."""

import json
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from orchestrator.cli import interrupt, log_lines
from orchestrator.cli.complete import processes
from orchestrator.cli.log_lines import LEVELS, Line, Wanted
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.tables import looked_at
from orchestrator.cli.terminal import plain
from orchestrator.home import Home

LOOK_S = 0.25
STYLES = {"debug": "dim", "info": "", "warning": "yellow", "error": "red", "critical": "bold red"}


def logs(
    config: ConfigOption = HERE,
    process: Annotated[
        list[str] | None,
        typer.Option("--process", "-p", help="Only this process. Repeatable.", autocompletion=processes),
    ] = None,
    rollout: Annotated[int | None, typer.Option(help="Only lines about this rollout.")] = None,
    group: Annotated[int | None, typer.Option(help="Only lines about this group.")] = None,
    level: Annotated[str, typer.Option(help=f"At least this: {', '.join(LEVELS)}.")] = LEVELS[0],
    text: Annotated[str, typer.Option("--text", help="Only lines that hold this text.")] = "",
    since: Annotated[str, typer.Option(help="Only what is newer: 90s, 15m, 2h, 1d, or a time (UTC).")] = "",
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="The newest so many lines (0: all).")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the logs of a run's processes on this machine, merged by time: penstock logs -c runs/first --rollout 301 --follow"""
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; known: {', '.join(LEVELS)}")
    began = log_lines.since(since, time.time()) if since else 0.0
    wanted = Wanted(frozenset(process or ()), level, rollout, group, began, text)
    directory = Home.at(config).layout.logs
    if follow:
        interrupt.heed()
    following = log_lines.Following(directory, wanted) if follow else None
    show(log_lines.newest(log_lines.files(directory, wanted), wanted, lines), as_json=as_json)
    while following is not None:
        time.sleep(LOOK_S)
        show(following.more(), as_json=as_json)


def show(found: list[Line], *, as_json: bool) -> None:
    """Print lines: JSON with the name of the process, or text that moves no cursor."""
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
    for line in found:
        if as_json:
            print(json.dumps({"process": line.process, "level": line.level, **line.fields}), flush=True)
            continue
        at = datetime.fromtimestamp(line.at, UTC).isoformat(" ", "milliseconds")[:-6] + "Z"
        row = f"{at} {line.process:<14} {line.level:<8} {plain(log_lines.told(line))}"
        if looked_at():
            console.print(Text(row, style=STYLES[line.level]))
        else:
            print(row, flush=True)


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(logs)
