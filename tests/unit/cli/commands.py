"""The commands of the command line."""

from collections.abc import Iterator
from typing import Any

import typer

from orchestrator.cli.main import app

ROOT: Any = typer.main.get_command(app)  # Typer brings its own copy of click, and names none of its classes


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that can be called."""
    if hasattr(command, "commands"):
        if command.invoke_without_command:
            yield " ".join(path), command
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(commands(ROOT))
