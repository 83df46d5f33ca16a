"""`penstock top`: the queue with its window, rollouts, rollout servers, processes and the trainer, live in a terminal."""

import shutil
import sys
from typing import Annotated

import anyio
import msgspec
import typer

from orchestrator.cli import tables
from orchestrator.cli.hints import carried
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.reading import Reader, reading
from orchestrator.cli.terminal import plain, plain_json
from orchestrator.deploy.home import Home
from orchestrator.settings.config import Config


def top(
    config: ConfigOption = HERE,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the current state and exit. This is the default without a terminal."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a run live: queue and window, rollouts, servers, trainer; q quits: penstock top -c runs/first"""
    resolved = Home.at(config).reading()
    # It is drawn on standard error.
    seen = sys.stdin.isatty() and sys.stderr.isatty() and tables.looked_at()
    live = seen and not (once or as_json)
    anyio.run(_top, resolved, live, as_json, once)


async def _top(config: Config, live: bool, as_json: bool, once: bool) -> None:
    from orchestrator.top import text
    from orchestrator.top.snapshot import Snapshot, snapshot

    async with reading(config, "top") as reader:

        async def read(reader: Reader = reader) -> Snapshot:
            return await reader.ask(lambda connection: snapshot(connection, config))

        if live:
            from orchestrator.top.app import Top

            await Top(read, plain).run_async()
            return
        found = await read()
        if not (once or as_json):
            typer.echo(
                carried("this is not a terminal: here is the state of this moment; `penstock tail` follows"),
                err=True,
            )
        if as_json:
            typer.echo(plain_json(msgspec.json.encode(found, enc_hook=str).decode()))
            return
        for part in text.whole(found, shutil.get_terminal_size((160, 40)).columns):
            if isinstance(part, str):
                typer.echo(plain(part))
            else:
                tables.print_rows(*part, upright=False)


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(top)
