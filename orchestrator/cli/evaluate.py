"""penstock eval: held-out tasks on a policy version, beside training; what was found, over versions."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.cli.bar import progress
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.terminal import cell, plain
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.look.evaluations import Evaluation, Point

app = typer.Typer(no_args_is_help=True)
NEWEST = "newest"
BARS = " ▁▂▃▄▅▆▇█"

PolicyOption = Annotated[str, typer.Option("--policy", help="Policy version, or newest.")]


@app.callback(invoke_without_command=True)
def evaluate(
    context: typer.Context,
    suite: Annotated[
        Path | None, typer.Option(help="Folder of held-out tasks, one task directory, or a .jsonl file.")
    ] = None,
    policy: PolicyOption = NEWEST,
    label: Annotated[
        str, typer.Option(help="Name of the suite in the results (default: its folder's).")
    ] = "",
    rollouts: Annotated[int, typer.Option(min=1, help="Tries per task.")] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="Temperature 0 instead of the run's.")] = False,
    scaffold: Annotated[str, typer.Option(help="Scaffold for all tasks (default: the run's shares).")] = "",
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a policy version on held-out tasks: penstock eval --suite suite/heldout --policy 7 -c runs/first

    It trains nothing and takes no place in the training queue. The same command with the same version goes on with what was
    interrupted (where --policy is newest, the version and that command are printed first); once it is done, it prints the result.
    Exit status 1: some groups gave no result. See also: penstock eval list, penstock eval show NAME.
    """
    if context.invoked_subcommand is not None:
        return
    if suite is None:
        raise ConfigurationError(
            "--suite names no held-out tasks: penstock eval --suite suite/heldout --policy 7"
        )
    from orchestrator.cli.tasks import read
    from orchestrator.evaluation import Asked
    from orchestrator.tasks.admit import check_admissible

    home = Home.at(config)
    asked = Asked(label or suite.resolve().stem, _version(policy), rollouts, greedy, scaffold)
    tasks = list(read([suite]))
    section = home.config().sandbox
    for task in tasks:
        check_admissible(task, section)

    def resolved(version: int) -> None:
        if policy != NEWEST:
            return
        words = ["penstock", "eval", "--suite", str(suite), "--policy", str(version)]
        words += ["--label", label] * bool(label) + ["--rollouts", str(rollouts)] * (rollouts != 1)
        words += ["--greedy"] * greedy + ["--scaffold", scaffold] * bool(scaffold) + ["-c", str(config)]
        told = f"the newest policy version is {version}; if this is interrupted, it goes on with: {shlex.join(words)}"
        typer.echo(plain(told), err=True)

    with progress(f"eval {plain(asked.suite)}") as tick:
        found = anyio.run(partial(_evaluate, home, tasks, asked, tick, resolved))
    if as_json:
        typer.echo(json.dumps(_plain(found)))
    else:
        _show(found)
    if found.unscored:
        raise typer.Exit(1)


@app.command("list")
def list_(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Every suite and version that was evaluated: penstock eval list -c runs/first"""
    found = anyio.run(partial(_read, Home.at(config), None, None))
    if as_json:
        typer.echo(json.dumps([_plain(each) for each in found]))
        return
    table = Table("suite", "version", "groups", "scored", "no result", "open", "success")
    for each in found:
        whole = next((point for point in each.points if point.domain == "all"), None)
        table.add_row(
            cell(each.suite), str(each.version), str(each.groups), str(each.scored), str(each.unscored), str(each.open),
            _percent(whole) if whole else "-",
        )  # fmt: skip
    tables.print_table(table)


@app.command()
def show(
    suite: Annotated[str, typer.Argument(help="Name of the suite, as `penstock eval list` has it.")],
    policy: Annotated[str, typer.Option("--policy", help="Only this policy version.")] = "",
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Success per domain over policy versions: penstock eval show heldout -c runs/first"""
    found = anyio.run(partial(_read, Home.at(config), suite, _version(policy) if policy else None))
    if not found:
        of = f" of version {policy}" if policy else ""
        raise ConfigurationError(f"no evaluation {suite!r}{of} is there: see penstock eval list")
    if as_json:
        typer.echo(json.dumps([_plain(each) for each in found]))
        return
    for each in found:
        _show(each)
    if len(found) > 1:
        _curves(found)


async def _evaluate(
    home: Home,
    tasks: Sequence[Any],
    asked: Any,
    tick: Callable[[int, int], None],
    resolved: Callable[[int], None],
) -> "Evaluation":
    from orchestrator.evaluation import connected

    def waits(sentence: str) -> None:
        typer.echo(plain(sentence), err=True)

    async with connected(home) as bench:
        return await bench.evaluate(tasks, asked, tick, resolved, waits)


async def _read(home: Home, suite: str | None, version: int | None) -> "list[Evaluation]":
    from orchestrator.look.evaluations import evaluations
    from orchestrator.pool.engine import Role, check_revision, open_engine
    from orchestrator.pool.runs import get_run

    config = home.reading()
    async with (
        open_engine(config.services.database_url, Role.READER, size=1, name="penstock-eval") as engine,
        engine.connect() as connection,
    ):
        await check_revision(connection)
        run = await get_run(connection, config.run.name)
        return await evaluations(connection, run.run_id, suite=suite, version=version)


def _version(given: str) -> int | None:
    if given == NEWEST:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 9:
        raise ConfigurationError(f"--policy {given!r} is no policy version: write a number, or newest")
    return int(given)


def _plain(found: "Evaluation") -> dict[str, Any]:
    said = asdict(found)
    for name in ("first", "last"):
        said[name] = said[name].isoformat() if said[name] is not None else None
    return said


def _percent(point: "Point") -> str:
    return f"{point.successes}/{point.n} = {100 * point.success:.1f} % [{100 * point.low:.1f}, {100 * point.high:.1f}]"


def _show(found: "Evaluation") -> None:
    table = Table("domain", "success, 95 % interval", "mean performance", title_justify="left")
    table.title = cell(f"{found.suite} on policy version {found.version}")
    for point in found.points:
        if point.domain == "all":
            table.add_section()
        table.add_row(cell(point.domain), _percent(point), f"{point.mean:.3f}")
    tables.print_table(table)
    if found.open:
        typer.echo(f"{found.open} of {found.groups} groups are open")
    if found.unscored:
        typer.echo(
            f"{found.unscored} of {found.groups} groups gave no result; `penstock sql` says why: groups.reason"
        )


def _curves(found: "Sequence[Evaluation]") -> None:
    """Success by domain over versions, a line each."""
    domains = sorted(
        {point.domain for each in found for point in each.points}, key=lambda name: (name == "all", name)
    )
    table = Table("domain", f"success over versions {found[0].version} to {found[-1].version}", "")
    for domain in domains:
        of = [point.success for each in found for point in each.points if point.domain == domain]
        line = "".join(BARS[round(8 * share)] for share in of)
        table.add_row(cell(domain), line, " ".join(f"{share:.2f}" for share in of))
    tables.print_table(table)
