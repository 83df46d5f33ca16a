"""`penstock sql`: one read-only statement, with limits on time and rows."""

import csv
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import anyio
import typer

from orchestrator.cli import tables
from orchestrator.cli.csv_cells import guarded
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.terminal import plain
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.home import Home
from orchestrator.runtime.streams import ends_with_reader
from orchestrator.settings.timeouts import use

TIMEOUT_S, LIMIT = 30.0, 1_000
MAX_SECONDS, MAX_ROWS = 2e6, 2**31 - 2  # PostgreSQL's limit in milliseconds, the driver's in rows
READS = ("select", "with", "values", "table", "explain", "show")
WRITES = ("delete", "insert", "update", "set")  # known words, even if they resemble one that reads
_FIRST = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([^\s(;]*)", re.S)
_TOO_LONG = "57014"  # SQLSTATE query_canceled: its statement_timeout
_NO_TABLE = re.compile(r'relation "([^"]+)" does not exist')
_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a statement; the names in `columns` are distinct; `more`: there are rows beyond the limit. `leaves`: what else a statement
    could do besides reading, as one sentence; None: nothing."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool = False
    leaves: str | None = None


def distinct(names: Sequence[str]) -> list[str]:
    """Number columns of equal names, so that a row as a mapping has them all.

    >>> distinct(["id", "x", "id", "id_2", "id"])
    ['id', 'x', 'id_3', 'id_2', 'id_4']
    """
    found: list[str] = []
    taken = set(names)
    for name in names:
        free = name
        number = 2
        while free in found or (free != name and free in taken):
            free, number = f"{name}_{number}", number + 1
        found.append(free)
    return found


def check_reads(statement: str) -> None:
    """Raise PenstockError unless the statement is text and starts like one that reads. In any case the session's role cannot write.

    >>> check_reads("-- how many?\\n(SELECT 1)")
    """
    try:
        statement.encode()
    except UnicodeEncodeError as error:
        raise PenstockError(f"the statement is not UTF-8 text (character {error.start + 1})") from None
    found = _FIRST.match(statement)
    first = found[1] if found else ""
    if not first:
        raise PenstockError('the statement is empty: penstock sql "select count(*) from groups"')
    if first.lower() not in READS:
        if (suggestions := get_close_matches(first.lower(), READS, 1)) and first.lower() not in WRITES:
            raise PenstockError(f"{first[:40]} begins no statement: did you mean {suggestions[0]}?")
        known = f"{', '.join(READS[:-1]).upper()} or {READS[-1].upper()}"
        raise PenstockError(
            f"penstock sql only reads: a statement begins with {known}, not with {first[:40].upper()}"
        )


async def query(url: str, statement: str, *, timeout_s: float = TIMEOUT_S, limit: int = LIMIT) -> Answer:
    """Run one statement as penstock_reader in a read-only transaction, if possible with a login that only reads. At most `limit` rows (0: all).

    Raises PenstockError, one sentence, if it does not read, Postgres refuses it, or it takes longer than `timeout_s` seconds (0: no limit).
    """
    import asyncpg

    from orchestrator.pool.engine import CANNOT_CONNECT, Role, open_engine
    from orchestrator.pool.reader_login import reader_login, unknown

    check_reads(statement)
    try:
        login = await reader_login(url)
    except CANNOT_CONNECT as error:
        login = unknown(url, error)  # away: opening the engine reports the problem, unless the server is back
    async with (
        open_engine(login.url, Role.READER, size=1, name="penstock-sql") as engine,
        engine.connect() as connection,
    ):
        raw: asyncpg.Connection = (await connection.get_raw_connection()).driver_connection
        try:
            # The driver's own transaction: SQLAlchemy has started none on this connection.
            async with raw.transaction(readonly=True):
                await raw.execute(f"SET LOCAL statement_timeout = {math.ceil(timeout_s * 1000)}")
                prepared = await raw.prepare(statement)
                cursor = await prepared.cursor()
                rows = await cursor.fetch(limit + 1 if limit else sys.maxsize >> 32)
        except (OverflowError, ValueError) as error:  # asyncpg's InterfaceError may be a ValueError, too
            if isinstance(error, asyncpg.InterfaceError):
                raise PenstockError(_sentence(error, statement, timeout_s)) from None
            raise PenstockError(
                f"a value of the answer is out of Python's range ({error}): select it as text (column::text)"
            ) from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            message = _sentence(error, statement, timeout_s)
            if missing := _NO_TABLE.search(message):
                tables_ = [str(row["relname"]) for row in await raw.fetch(_TABLES)]
                if suggestions := get_close_matches(missing[1].rpartition(".")[2].lower(), tables_, 1):
                    message += f"; did you mean {suggestions[0]}?"
            raise PenstockError(message) from None
        columns = distinct([each.name for each in prepared.get_attributes()])
        return Answer(
            columns=columns,
            rows=[tuple(row) for row in rows[: limit or None]],
            more=bool(limit) and len(rows) > limit,
            leaves=login.leaves,
        )


def _sentence(error: Exception, statement: str, timeout_s: float) -> str:
    """Postgres's message, with the position in the statement and its hint; one line."""
    if getattr(error, "sqlstate", None) == _TOO_LONG:
        return f"the statement took longer than {timeout_s:g} s: ask for less, or give it more time with --timeout-s"
    message = str(getattr(error, "message", None) or error).partition("\n")[0]
    if "multiple commands" in message:
        return "there are several statements: penstock sql takes one at a time"
    position = getattr(error, "position", None)
    if position is not None:
        before = statement[: int(position) - 1]
        message += f" (line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))})"
    hint = getattr(error, "hint", None)
    return f"{message}; {' '.join(hint.split())}" if hint else message


def sql(
    statement: Annotated[
        str, typer.Argument(help="One read-only statement; - reads it from standard input.")
    ],
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
    as_csv: Annotated[
        bool,
        typer.Option(
            "--csv",
            help="Print CSV instead of a table; text that a spreadsheet would run gets an apostrophe.",
        ),
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --csv: every text as it is, for programs.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, max=MAX_ROWS, help="Print at most this many rows (0: all).")
    ] = LIMIT,
    timeout_s: Annotated[
        float,
        typer.Option(
            min=0,
            max=MAX_SECONDS,
            help="Give up after this many seconds (0: only timeouts.pool_reader_s of the run ends it).",
        ),
    ] = TIMEOUT_S,
) -> None:
    """Run a read-only query; --json prints one object per line: penstock sql "select state, count(*) from rollouts where run_id = 1 group by 1" """
    ends_with_reader()
    if as_json and as_csv:
        raise ValueError("give --json or --csv, not both")
    if exact and not as_csv:
        raise ValueError("--exact goes with --csv; --json is always exact")
    if statement == "-":
        statement = sys.stdin.read()
    settings = Home.at(config).reading()
    with use(settings.timeouts):
        url = settings.services.database_url
        answer = anyio.run(lambda: query(url, statement, timeout_s=timeout_s, limit=limit))
    if answer.leaves is not None:
        typer.echo(plain(answer.leaves), err=True)
    if as_json:
        for row in answer.rows:
            typer.echo(tables.line(dict(zip(answer.columns, row, strict=True))))
    elif as_csv:
        _print_csv(answer, exact=exact)
    else:
        tables.print_rows(answer.columns, answer.rows)
    if answer.more:
        typer.echo(f"these are the first {limit:,} rows, there are more: --limit 0 prints all", err=True)
    elif not as_json and not as_csv and tables.looked_at():
        typer.echo(f"{len(answer.rows)} row{'s' * (len(answer.rows) != 1)}")


def _print_csv(answer: Answer, *, exact: bool) -> None:
    """RFC 4180 except for line ends; on a terminal without characters that move its cursor. Unless `exact`, spreadsheets run no cell."""
    clean = plain if tables.looked_at() else str
    guard = str if exact else guarded
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(guard, answer.columns))
    for row in answer.rows:
        writer.writerow([clean(guard(_exact(value))) for value in row])


def _exact(value: Any) -> str:
    """A cell of CSV: numbers with all their digits."""
    return (
        repr(value) if isinstance(value, float) else tables.ranged(value, exact=True) or tables.shown(value)
    )


def register(app: typer.Typer) -> None:
    """Add these commands to the root."""
    app.command()(sql)
