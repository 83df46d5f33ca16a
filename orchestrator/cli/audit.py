"""`penstock audit`: check the invariants of a live or ended run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.cli import tables, terminal
from orchestrator.cli.bar import progress
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, path
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.numbers import INT4
from orchestrator.deploy.home import Home

if TYPE_CHECKING:
    from orchestrator.audit import Report

SETTLED_S = 10.0  # a process that has just started has not cleaned up after its predecessors yet


def _wrong(path: Path, kind: str) -> str:
    """How a path differs from one of that kind."""
    return f"is not a {kind}" if path.exists() else "does not exist"


async def _audit(home: Home, ledger: Path | None, sample: int | None, witness: Path | None) -> "Report":
    from orchestrator.audit import audit as check
    from orchestrator.deploy.embedded.supervisor import read_status
    from orchestrator.pool.engine import Role
    from orchestrator.pool.opened import opened
    from sandboxes.reap import default_root

    config = home.connected()
    status = read_status(home.layout)
    # None: nothing was ever started here; the run is on other machines, or stopped.
    alive = None if status is None else status.ready(SETTLED_S)
    with progress("audit") as tick:
        async with opened(config.services.database_url, Role.READER, size=2, name="penstock-audit") as engine:
            return await check(
                engine,
                config.run.name,
                home.policies,
                ledger,
                alive=alive,
                sandbox_root=default_root(),
                workers=home.workers,
                sample=sample,
                witness=witness,
                own=config,
                tick=tick,
            )


def audit(
    config: ConfigOption = HERE,
    ledger: Annotated[
        Path | None,
        typer.Option(help="A file with one submission id per line, written by the submitter.", parser=path),
    ] = None,
    as_json: JsonOption = False,
    sample: Annotated[
        int,
        typer.Option(
            min=0, max=INT4, help="Recompute the bytes of this many rollouts, chosen at random (0: all)."
        ),
    ] = 0,
    witness: Annotated[
        Path | None,
        typer.Option(
            help="A directory with answers.jsonl and generations.jsonl, written outside Penstock.",
            parser=path,
        ),
    ] = None,
) -> None:
    """Check that nothing was lost, changed or trained twice; exit status 1 if something was: penstock audit -c runs/first"""
    if ledger is not None and not ledger.is_file():
        raise ConfigurationError(
            f"ledger {ledger} {_wrong(ledger, 'plain file')}: name a file with one submission id per line"
        )
    if witness is not None and not witness.is_dir():
        raise ConfigurationError(
            f"the witness's directory {witness} {_wrong(witness, 'directory')}: name one with answers.jsonl and generations.jsonl"
        )
    report = anyio.run(_audit, Home.at(config), ledger, sample or None, witness)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        _show(report)
    if report.violations:
        raise typer.Exit(1)


def _show(report: "Report") -> None:
    from orchestrator.audit.findings import plain

    console = Console(soft_wrap=True)
    table = Table("", "check", "rows", "violations")
    for check in report.checks:
        outcome = "[dim]skipped[/dim]" if check.skipped else str(check.found)
        table.add_row(check.invariant, check.name, str(check.examined), outcome)
    tables.print_table(table, markup=True)
    for check in report.checks:
        if check.skipped:
            console.print(
                f"[dim]{check.invariant} {check.name}: skipped, {escape(check.skipped)}[/dim]",
                highlight=False,
            )
    for check in report.checks:
        for violation in check.violations:
            rows = ", ".join(f"{key}={plain(value)}" for key, value in violation.rows.items())
            console.print(
                f"[red]{violation.invariant}[/red] {escape(terminal.plain(violation.what))}  [dim]{escape(terminal.plain(rows))}[/dim]",
                highlight=False,
            )
        if check.found > len(check.violations):
            console.print(
                f"[red]{check.invariant}[/red] {check.name}: {check.found - len(check.violations)} more"
            )
    console.print(
        f"run {report.run!r} ({report.state}): {report.violations} violations in {report.seconds:.1f} s",
        highlight=False,
        markup=False,
    )


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(audit)
