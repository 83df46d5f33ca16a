"""`penstock compare`: several runs side by side, each with its own directory and data pool."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.cli import tables
from orchestrator.cli.options import JsonOption, path
from orchestrator.cli.reading import reading
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.home import Home
from orchestrator.runtime.figures import VISIBLE_BARS, sparkline

if TYPE_CHECKING:
    from orchestrator.queries.comparison import Compared
    from orchestrator.queries.evaluations import EvaluationPoint

WIDTH = 40  # characters of a curve


def compare(
    configs: Annotated[
        list[Path],
        typer.Option(
            "--config", "-c", help="penstock.toml of a run, or its directory. Give two or more.", parser=path
        ),
    ],
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            help="A metric of train steps to show instead of the usual ones: loss, ess, … Repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs, each in its own directory with its own database: success, train steps, held-out results, curves."""
    from orchestrator.queries.comparison import KEYS
    from orchestrator.queries.curves import PLAIN

    if len(configs) < 2:
        raise ConfigurationError("there is nothing to compare: give two runs, -c runs/first -c runs/second")
    chosen = tuple(keys or KEYS)
    if unknown := [key for key in chosen if key not in PLAIN]:
        raise ConfigurationError(f"unknown key {quoted(unknown[0])}; known: {', '.join(PLAIN)}")
    homes = [Home.at(config) for config in configs]
    found = [anyio.run(_read, home, chosen) for home in homes]
    if as_json:
        shown = [
            {"directory": str(home.file.parent), **asdict(each)}
            for home, each in zip(homes, found, strict=True)
        ]
        typer.echo(json.dumps(shown))
        return
    _show([_named(home, found) for home in homes], found, chosen)


async def _read(home: Home, keys: tuple[str, ...]) -> "Compared":
    """Raises PenstockError that names the directory if its data pool does not answer."""
    from orchestrator.queries.comparison import compared

    try:
        async with reading(home.reading(), "compare") as reader:
            return await reader.ask(lambda connection: compared(connection, reader.run, keys))
    except PenstockError as error:
        run_directory = home.file.parent
        raise PenstockError(
            f"{run_directory}: {error} (its services and dashboard alone: penstock up -c {shlex.quote(str(run_directory))} --only web)"
        ) from error


def _named(home: Home, among: "list[Compared]") -> str:
    return home.file.parent.name if len({each.run for each in among}) < len(among) else home.config().run.name


def _show(names: list[str], found: "list[Compared]", keys: tuple[str, ...]) -> None:
    rows: list[list[object]] = [
        ["state", *(each.state for each in found)],
        ["policy version", *(each.version for each in found)],
        ["batches", *(each.batches for each in found)],
        ["train steps", *(each.train_steps for each in found)],
        ["trained groups", *(each.trained_groups for each in found)],
    ]
    for key in keys:
        rows.append([f"{key}, last steps", *(each.means[key] for each in found)])
    for suite in sorted({point.suite for each in found for point in each.heldout}):
        cells: list[object] = []
        for each in found:
            point = next((candidate for candidate in each.heldout if candidate.suite == suite), None)
            cells.append(
                f"{100 * point.success:.1f} % [{100 * point.low:.1f}, {100 * point.high:.1f}] n={_judged(point)}, version {point.version}"
                if point
                else "-"
            )
        rows.append([f"{suite} (held out)", *cells])
    tables.print_rows(["", *names], rows, upright=False)
    for key in keys:
        values = [value for each in found for value in each.lines.get(key, []) if value is not None]
        if not values:
            continue
        typer.echo(f"\n{key}, {min(values):.4g} to {max(values):.4g}, over train steps")
        low, high = min(values), max(values)
        rows = [
            [
                name,
                f"0 to {each.last_step}",
                sparkline(each.lines.get(key, []), low=low, high=high, width=WIDTH, bars=VISIBLE_BARS),
            ]
            for name, each in zip(names, found, strict=True)
        ]
        tables.print_rows(["run", "train steps", ""], rows, upright=False)


def _judged(point: "EvaluationPoint") -> str:
    """How many rollouts are behind a share, and how many were wanted if those are more."""
    return str(point.n) if point.n == point.wanted else f"{point.n} of {point.wanted}"


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(compare)
