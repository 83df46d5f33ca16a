"""`penstock doctor --cluster`: what orchestrator.cluster.doctor finds, as a table or JSON."""

import json
from pathlib import Path

import anyio
import typer
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.embedded.doctor import Check
from orchestrator.home import Home


def look(
    config: Path, topology: Path | None, monitors: tuple[str, ...], provider: str, as_json: bool
) -> None:
    """Every check; exit status 1 when something must be changed."""
    from orchestrator import plugins
    from orchestrator.cluster.doctor import examined
    from orchestrator.cluster.doctor.expected import by_configuration, by_topology
    from orchestrator.cluster.reading import load
    from orchestrator.providers import tables as settings

    home = Home.at(config)
    resolved = home.connected()
    if not resolved.gateway.urls and home.gateway_url_file.exists():
        beside = home.gateway_url_file.read_text(encoding="utf-8").strip()
        gateway = resolved.gateway.model_copy(update={"urls": (beside,)})
        resolved = resolved.model_copy(update={"gateway": gateway})
    here = home.policies
    told = by_topology(load(topology), here, monitors) if topology is not None else None
    expected = told or by_configuration(resolved, here, monitors)
    inside = plugins.provider(provider or resolved.sandbox.provider, settings(resolved.sandbox))
    shown(anyio.run(examined, resolved, expected, inside), as_json)


def probe(config: Path, read: str) -> None:
    """Write a file into the shared directory, or look for the one that another host wrote."""
    from orchestrator.cluster.doctor.shared import read_probe, write_probe

    directory = Home.at(config).policies
    if read:
        shown([read_probe(directory, read)], False)
        return
    try:
        name = write_probe(directory)
    except OSError as error:
        raise ValueError(f"{directory} takes no file: {error}") from None
    typer.echo(f"on another host: penstock doctor --cluster --read-probe {name}")


def shown(found: list[Check], as_json: bool) -> None:
    """What, found, fix."""
    if as_json:
        rows = [{"name": c.name, "ok": c.ok, "detail": c.detail, "fix": c.fix} for c in found]
        typer.echo(json.dumps(rows, indent=2))
    else:
        table = Table("check", "", "found", "fix")
        for check in found:
            table.add_row(check.name, "ok" if check.ok else "CHANGE", check.detail, check.fix)
        tables.print_table(table)
    if not all(check.ok for check in found):
        raise typer.Exit(1)
