"""Commands that read the data pool: sql."""

import json
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli import terminal
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.contracts.errors import PenstockError
from orchestrator.home import Home


async def query(url: str, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of one read-only statement, run as penstock_reader. PenstockError names what Postgres refused."""
    from sqlalchemy.exc import DBAPIError

    from orchestrator.pool.engine import Role, open_engine
    from orchestrator.pool.transact import sentence

    async with (
        open_engine(url, Role.READER, size=1, name="penstock-sql") as engine,
        engine.connect() as connection,
    ):
        try:
            result = await connection.exec_driver_sql(statement)
        except DBAPIError as error:
            raise PenstockError(sentence(error)) from None
        if not result.returns_rows:
            return [], []
        return list(result.keys()), [tuple(row) for row in result]


def show(value: Any) -> str:
    """A cell: arrays and JSON compact, bytes as hex, floats to 6 digits."""
    match value:
        case None:
            return ""
        case float():
            return f"{value:.6g}"
        case bytes():
            return value.hex()
        case dict() | list():
            return json.dumps(value, default=str)
        case _:
            return str(value)


def sql(
    statement: Annotated[str, typer.Argument(help="One SELECT.")],
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Run a read-only query: penstock sql "select domain, avg(performance) from reward_breakdown group by 1" """
    columns, rows = anyio.run(query, Home.at(config).connected().services.database_url, statement)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(dict(zip(columns, row, strict=True)), default=show))
        return
    console = Console(markup=False, emoji=False, highlight=False)
    too_wide = 1 + sum(len(column) + 3 for column in columns) > console.width
    if too_wide:  # as psql does with \x: one upright table per row
        for row in rows:
            upright = Table("column", "value")
            for column, value in zip(columns, row, strict=True):
                upright.add_row(column, terminal.cell(show(value)))
            console.print(upright)
        console.print(f"{len(rows)} row{'s' * (len(rows) != 1)}", highlight=False)
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*(terminal.cell(show(value)) for value in row))
    console.print(table)


def register(app: typer.Typer) -> None:
    """Add these commands to the root."""
    app.command()(sql)
