"""`penstock doctor --cluster`: the findings of orchestrator.deploy.cluster.doctor, as a table or JSON."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import anyio
import typer
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.cli.hints import carried
from orchestrator.cli.options import HERE
from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.deploy.home import Home


def check(
    config: Path, topology: Path | None, monitors: tuple[str, ...], provider: str, as_json: bool
) -> None:
    """Run every check; exit status 1 if something must be changed."""
    from orchestrator.deploy.cluster.doctor import examined
    from orchestrator.deploy.cluster.doctor.expected import by_configuration, by_topology
    from orchestrator.deploy.cluster.reading import load
    from orchestrator.runtime import plugins
    from orchestrator.settings.providers import tables as settings

    home = Home.at(config)
    resolved = home.connected()
    if not resolved.gateway.urls and home.gateway_url_file.exists():
        gateway_url = home.gateway_url_file.read_text(encoding="utf-8").strip()
        gateway = resolved.gateway.model_copy(update={"urls": (gateway_url,)})
        resolved = resolved.model_copy(update={"gateway": gateway})
    policies = home.policies
    from_topology = by_topology(load(topology), policies, monitors) if topology is not None else None
    expected = from_topology or by_configuration(resolved, policies, monitors)
    inside = plugins.provider(provider or resolved.sandbox.provider, settings(resolved.sandbox))
    shown(anyio.run(examined, resolved, expected, inside), as_json)


def probe(config: Path, read: str) -> None:
    """Write a file into the shared directory, or look for a file that another host wrote."""
    from orchestrator.deploy.cluster.doctor.shared import read_probe, write_probe

    directory = Home.at(config).policies
    if read:
        shown([read_probe(directory, read)], False)
        return
    try:
        name = write_probe(directory)
    except OSError as error:
        raise ValueError(f"{directory} is not writable: {error}") from None
    at = "" if config == HERE else f" -c {shlex.quote(str(config))}"
    typer.echo(f"on another host: penstock doctor --cluster{at} --read-probe {name}")


def shown(found: list[DoctorCheck], as_json: bool) -> None:
    """Print each check with its finding and fix."""
    found = [replace(check, fix=carried(check.fix or "")) for check in found]
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
