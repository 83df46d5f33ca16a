"""Options shared by many commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.contracts.numbers import INT2, INT4, INT8, whole


def _number(most: int, least: int = 0) -> Callable[[object], int]:
    """Parser of a number of the data pool, for an option or an argument: `typer.Option(parser=…)`."""

    def read(given: object) -> int:
        try:
            return whole(str(given), least=least, most=most)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


ID = _number(INT8)
"""The number of a rollout or a group."""
COUNTER = _number(INT4)
"""The number of a batch, a step or a policy version."""
ATTEMPT = _number(INT2, 1)


def path(given: object) -> Path:
    """Parser of a path. It refuses `""`, the value of an unset shell variable, which would mean the working directory."""
    if given == "":
        raise typer.BadParameter(
            "it is empty: give a path (`.` is this directory); is a variable of your shell unset?"
        )
    return Path(str(given))


ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="penstock.toml, or its directory.", parser=path)
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override one key: section.key=value. Repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

HERE = Path(".")
