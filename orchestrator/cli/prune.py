"""`penstock prune`: drop the data of an ended run's trajectories."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.cli.bar import busy
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.deploy.home import Home

if TYPE_CHECKING:
    from orchestrator.pool.blobs import Swept
    from orchestrator.pool.prune import Held


async def _prune(
    url: str, name: str, letters_days: float | None, *, dry_run: bool
) -> tuple[list["Held"], int, "Swept"]:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.pool import blobs
    from orchestrator.pool import prune as retention
    from orchestrator.pool.opened import opened
    from orchestrator.pool.runs import get_run
    from orchestrator.pool.transact import transact

    async with opened(url, name="penstock-prune") as engine:

        async def read_counts(connection: AsyncConnection) -> tuple[int, list["Held"], int]:
            run = await get_run(connection, name)
            await retention.check_prunable(connection, run)
            old = (
                0
                if letters_days is None
                else await retention.old_letters(connection, run.run_id, letters_days)
            )
            return run.run_id, await retention.held(connection, run.run_id), old

        run_id, found, old = await transact(engine, read_counts, at="person.commit")

        async def unnamed(connection: AsyncConnection) -> dict[str, int]:
            return await blobs.unnamed(connection, await blobs.named(connection, without=run_id))

        if dry_run:
            doomed = await transact(engine, unnamed, at="person.commit")
            return found, old, blobs.Swept(len(doomed), sum(doomed.values()))

        async def begin_pruning(connection: AsyncConnection) -> int:
            await retention.begin(connection, await get_run(connection, name))
            if letters_days is None:
                return 0
            return await retention.drop_letters(connection, run_id, letters_days)

        letters = await transact(engine, begin_pruning, at="person.commit")
        await retention.drop(engine, run_id)
        return found, letters, await blobs.sweep(engine, await transact(engine, unnamed, at="person.commit"))


MAX_DAYS = 36_525.0  # a century: PostgreSQL's times are bounded


def prune(
    config: ConfigOption = HERE,
    run: Annotated[str, typer.Option(help="Which run of this database (default: the configuration's).")] = "",
    dead_letters: Annotated[
        float | None,
        typer.Option(
            min=0, max=MAX_DAYS, help="Also delete its dead messages that are older than this many days."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete an ended run's steps, routes, messages and prompts for good, and files of large tasks that no other run has; the outcome of every
    group, its rewards and its batches stay."""
    connected = Home.at(config).connected()
    name = run or connected.run.name
    with busy(f"prune {name}"):
        found, letters, swept = anyio.run(
            lambda: _prune(connected.services.database_url, name, dead_letters, dry_run=dry_run)
        )
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "run": name,
                    "dry_run": dry_run,
                    "dropped": [asdict(each) for each in found],
                    "dead_letters": letters,
                    "blobs": asdict(swept),
                }
            )
        )
        return
    table = Table("table", "rows", "MiB")
    for each in found:
        table.add_row(each.table, f"{each.rows:,}", "" if each.size is None else f"{each.size / 2**20:,.1f}")
    if swept.count:
        table.add_row("blobs", f"{swept.count:,}", f"{swept.size / 2**20:,.1f}")
    tables.print_table(table)
    size = (sum(each.size or 0 for each in found) + swept.size) / 2**20
    typer.echo(
        f"run {name!r}: {size:,.1f} MiB {'would be' if dry_run else 'are'} given back"
        + (f", {letters:,} dead messages {'would be ' if dry_run else ''}deleted" if letters else "")
    )


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(prune)
