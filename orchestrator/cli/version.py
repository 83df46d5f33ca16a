"""`penstock --version`."""

import platform
from importlib.metadata import version
from typing import Annotated

import typer


def _print(requested: bool) -> None:
    if requested:
        from orchestrator.pool.engine import REVISION

        typer.echo(
            f"penstock {version('penstock')} (database revision {REVISION}, Python {platform.python_version()})"
        )
        raise typer.Exit


def root(
    show: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print, help="Print the version and exit."),
    ] = False,
) -> None:
    """Global options."""


def register(app: typer.Typer) -> None:
    """Add the option to the root."""
    app.callback()(root)
