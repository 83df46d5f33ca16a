"""`penstock logs`: the logs of this directory's processes, in one order."""

import json
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from orchestrator.cli import interrupt, log_lines
from orchestrator.cli.log_lines import LEVELS, Line, Wanted
from orchestrator.cli.options import HERE, ID, ConfigOption, JsonOption
from orchestrator.cli.shell_completion import processes
from orchestrator.cli.tables import looked_at
from orchestrator.cli.terminal import plain
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.home import Home
from orchestrator.runtime.streams import check_reader, ends_with_reader

POLL_INTERVAL_S = 0.25
STYLES = {"debug": "dim", "info": "", "warning": "yellow", "error": "red", "critical": "bold red"}


def logs(
    config: ConfigOption = HERE,
    process: Annotated[
        list[str] | None,
        typer.Option("--process", "-p", help="Only this process. Repeatable.", autocompletion=processes),
    ] = None,
    rollout: Annotated[
        int | None, typer.Option(parser=ID, metavar="ID", help="Only lines about this rollout.")
    ] = None,
    group: Annotated[
        int | None, typer.Option(parser=ID, metavar="ID", help="Only lines about this group.")
    ] = None,
    level: Annotated[str, typer.Option(help=f"Only this level and above: {', '.join(LEVELS)}.")] = LEVELS[0],
    text: Annotated[str, typer.Option("--text", help="Only lines that contain this text.")] = "",
    since: Annotated[str, typer.Option(help="Only newer lines: 90s, 15m, 2h, 1d, or a time (UTC).")] = "",
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Print only this many of the newest lines (0: all).")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the logs of a run's processes on this machine, merged by time: penstock logs -c runs/first --rollout 301 --follow"""
    ends_with_reader()
    if level not in LEVELS:
        raise ValueError(f"unknown level {quoted(level)}; known: {', '.join(LEVELS)}")
    earliest = log_lines.since(since, time.time()) if since else 0.0
    wanted = Wanted(
        processes=frozenset(process or ()),
        level=level,
        rollout=rollout,
        group=group,
        since=earliest,
        text=text,
    )
    directory = Home.at(config).layout.logs
    if follow:
        interrupt.heed()
    following = log_lines.Following(directory, wanted) if follow else None
    files = log_lines.files(directory, wanted)
    if not files:
        typer.echo(f"no log exists yet: no process of this run was started here ({directory})", err=True)
    show(log_lines.newest(files, wanted, lines), as_json=as_json)
    while following is not None:
        time.sleep(POLL_INTERVAL_S)
        check_reader()
        show(following.more(), as_json=as_json)


def show(found: list[Line], *, as_json: bool) -> None:
    """Print lines: JSON with the name of the process, or text without control characters."""
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
    for line in found:
        if as_json:
            print(json.dumps({"process": line.process, "level": line.level, **line.fields}), flush=True)
            continue
        at = datetime.fromtimestamp(line.at, UTC).isoformat(" ", "milliseconds")[:-6] + "Z"
        row = f"{at} {line.process:<14} {line.level:<8} {plain(log_lines.formatted(line))}"
        if looked_at():
            console.print(Text(row, style=STYLES[line.level]))
        else:
            print(row, flush=True)


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(logs)
