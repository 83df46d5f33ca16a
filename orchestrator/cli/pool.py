"""`penstock sql`: one statement that reads, with a limit in time and in rows."""

import csv
import re
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import anyio
import typer

from orchestrator.cli import tables
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.terminal import plain
from orchestrator.clock import ticking
from orchestrator.contracts.errors import PenstockError
from orchestrator.home import Home

TIMEOUT_S, LIMIT = 30.0, 1_000
READS = ("select", "with", "values", "table", "explain", "show")
WRITES = ("delete", "insert", "update", "set")  # known words, however close to one that reads
_FIRST = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([^\s(;]*)", re.S)
_TOO_LONG = "57014"  # SQLSTATE query_canceled: its statement_timeout
_NO_TABLE = re.compile(r'relation "([^"]+)" does not exist')
_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')"


@dataclass(frozen=True)
class Answer:
    """What a statement gave; `more`: there are rows behind the limit. `leaves`: what a statement could do besides reading, as one sentence;
    empty: nothing."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool = False
    leaves: str = ""


def check_reads(statement: str) -> None:
    """Raise PenstockError unless the statement begins as one that reads. The role of the session may write nothing in any case.

    >>> check_reads("-- how many?\\n(SELECT 1)")
    """
    found = _FIRST.match(statement)
    first = found[1] if found else ""
    if not first:
        raise PenstockError('there is no statement: penstock sql "select count(*) from groups"')
    if first.lower() not in READS:
        if (meant := get_close_matches(first.lower(), READS, 1)) and first.lower() not in WRITES:
            raise PenstockError(f"{first[:40]} begins no statement: did you mean {meant[0]}?")
        known = f"{', '.join(READS[:-1]).upper()} or {READS[-1].upper()}"
        raise PenstockError(
            f"penstock sql only reads: a statement begins with {known}, not with {first[:40].upper()}"
        )


async def query(url: str, statement: str, *, timeout_s: float = TIMEOUT_S, limit: int = LIMIT) -> Answer:
    """Run one statement as penstock_reader in a read-only transaction, if it can as a login that is only that. At most `limit` rows (0: all).

    PenstockError, one sentence, when it does not read, Postgres refuses it, or it takes longer than `timeout_s` seconds (0: for ever).
    """
    import asyncpg

    from orchestrator.pool.engine import Role, open_engine
    from orchestrator.pool.reader_login import reader_login, unknown

    check_reads(statement)
    try:
        login = await reader_login(url)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        login = unknown(url, error)  # away: opening says what is wrong, unless it is back
    async with (
        open_engine(login.url, Role.READER, size=1, name="penstock-sql") as engine,
        engine.connect() as connection,
    ):
        raw: asyncpg.Connection = (await connection.get_raw_connection()).driver_connection
        try:
            # The driver's own transaction: SQLAlchemy has begun none on this connection.
            async with raw.transaction(readonly=True):
                await raw.execute(f"SET LOCAL statement_timeout = {round(timeout_s * 1000)}")
                prepared = await raw.prepare(statement)
                cursor = await prepared.cursor()
                rows = await cursor.fetch(limit + 1 if limit else sys.maxsize >> 32)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            said = _sentence(error, statement, timeout_s)
            if missing := _NO_TABLE.search(said):
                tables_ = [str(row["relname"]) for row in await raw.fetch(_TABLES)]
                if meant := get_close_matches(missing[1].rpartition(".")[2].lower(), tables_, 1):
                    said += f"; did you mean {meant[0]}?"
            raise PenstockError(said) from None
        columns = [each.name for each in prepared.get_attributes()]
        return Answer(
            columns,
            [tuple(row) for row in rows[: limit or None]],
            bool(limit) and len(rows) > limit,
            login.leaves,
        )


def _sentence(error: Exception, statement: str, timeout_s: float) -> str:
    """What Postgres says, where in the statement, and what it advises; one line."""
    if getattr(error, "sqlstate", None) == _TOO_LONG:
        return f"the statement took longer than {timeout_s:g} s: ask for less, or give it more time with --timeout-s"
    said = str(getattr(error, "message", None) or error).partition("\n")[0]
    if "multiple commands" in said:
        return "there are several statements: penstock sql takes one at a time"
    position = getattr(error, "position", None)
    if position is not None:
        before = statement[: int(position) - 1]
        said += f" (line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))})"
    hint = getattr(error, "hint", None)
    return f"{said}; {' '.join(hint.split())}" if hint else said


def sql(
    statement: Annotated[
        str, typer.Argument(help="One statement that reads; - takes it from standard input.")
    ],
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Print at most so many rows (0: all).")] = LIMIT,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="Give up after so many seconds (0: never).")
    ] = TIMEOUT_S,
) -> None:
    """Run a read-only query; --json prints an object a line: penstock sql "select domain, avg(performance) from reward_breakdown group by 1" """
    if as_json and as_csv:
        raise ValueError("give --json or --csv, not both")
    if statement == "-":
        statement = sys.stdin.read()
    settings = Home.at(config).reading()
    with ticking(settings.clock):
        url = settings.services.database_url
        answer = anyio.run(lambda: query(url, statement, timeout_s=timeout_s, limit=limit))
    if answer.leaves:
        typer.echo(plain(answer.leaves), err=True)
    if as_json:
        for row in answer.rows:
            typer.echo(tables.line(dict(zip(answer.columns, row, strict=True))))
    elif as_csv:
        _print_csv(answer)
    else:
        tables.print_rows(answer.columns, answer.rows)
    if answer.more:
        typer.echo(f"these are the first {limit:,} rows, there are more: --limit 0 prints all", err=True)
    elif not as_json and not as_csv and tables.looked_at():
        typer.echo(f"{len(answer.rows)} row{'s' * (len(answer.rows) != 1)}")


def _print_csv(answer: Answer) -> None:
    """As RFC 4180 has it, but for line ends; on a terminal without what would move its cursor."""
    clean = plain if tables.looked_at() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        writer.writerow([clean(_exact(value)) for value in row])


def _exact(value: Any) -> str:
    """A cell of CSV: numbers with all their digits."""
    return repr(value) if isinstance(value, float) else tables.shown(value)


def register(app: typer.Typer) -> None:
    """Add these commands to the root."""
    app.command()(sql)
