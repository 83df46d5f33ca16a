"""Options that many commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="penstock.toml, or its directory.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override one key: section.key=value. Repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

HERE = Path(".")
