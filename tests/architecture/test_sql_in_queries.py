"""SQL stands in three rooms: `pool` (writes, and reads to act), `queries` (read models), `audit` (the invariants). No other module has a statement,
a table or a call that runs one."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("orchestrator", "trainer", "agents", "sandboxes")
ROOMS = ("orchestrator/pool/", "orchestrator/queries/", "orchestrator/audit/")
EXCEPTIONS = {
    "orchestrator/cli/sql.py": "`penstock sql` runs a person's own statement on a raw connection, and looks up table names to correct a wrong one",
    "orchestrator/cli/show.py": "names, in an error, the statement of `penstock sql` that lists what exists; it runs none",
    "orchestrator/deploy/embedded/postgres.py": "the ready check of an embedded server, which has no data pool yet",
    "orchestrator/deploy/embedded/service_sources.py": "asks any PostgreSQL server for its data directory, before it is known to be ours",
}
ALLOWED_IMPORTS = ("sqlalchemy.ext.asyncio", "sqlalchemy.exc")  # connections and errors, no statements
TABLES = ("orchestrator.pool.tables", "orchestrator.pool.columns")
RUNS = {
    "execute",
    "scalar",
    "scalars",
    "stream_scalars",
    "exec_driver_sql",
    "executemany",
    "fetchrow",
    "fetchval",
}
STATEMENT = re.compile(
    r"\s*\(?\s*(SELECT\b|select\s.*\bfrom\s|SHOW\s+[a-z_]+\s*$|(?i:WITH\s+(RECURSIVE\s+)?\w+\s+AS\s+(NOT\s+|MATERIALIZED\s+)*\()"
    r"|(?i:INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|SET\s+LOCAL\s))",
    re.DOTALL,
)


def faults(source: str) -> list[str]:
    """Each place where a module imports a function that makes a statement, or a table, contains the text of a statement, or runs one."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module)) if _makes_statements(module):
                found.append(f"{node.lineno}: imports {module}")
            case ast.Import(names=names):
                found += [
                    f"{node.lineno}: imports {each.name}" for each in names if _makes_statements(each.name)
                ]
            case ast.Constant(value=str(value)) if STATEMENT.match(value):
                found.append(f"{node.lineno}: {value.strip()[:40]}")
            case ast.Await(value=ast.Call(func=ast.Attribute(attr=name))) if name in RUNS:
                found.append(f"{node.lineno}: awaits {name}()")
    return found


def _makes_statements(module: str) -> bool:
    return (module.partition(".")[0] == "sqlalchemy" and module not in ALLOWED_IMPORTS) or any(
        module == table or module.startswith(f"{table}.") for table in TABLES
    )


def test_only_pool_queries_and_audit_hold_sql() -> None:
    files = [file for part in PARTS for file in sorted((ROOT / part).rglob("*.py"))]
    names = {file: file.relative_to(ROOT).as_posix() for file in files}
    found = {
        name: places
        for file, name in names.items()
        if not name.startswith(ROOMS) and (places := faults(file.read_text(encoding="utf-8")))
    }
    extra = {name: places for name, places in found.items() if name not in EXCEPTIONS}
    assert not extra, (
        f"a read model belongs in orchestrator/queries, a read to act in orchestrator/pool: {extra}"
    )
    assert EXCEPTIONS.keys() <= found.keys(), "an exception without SQL is none"
    assert all(any(name.startswith(room) for name in names.values()) for room in ROOMS)


def test_a_statement_a_table_and_a_call_that_runs_one_are_found() -> None:
    assert faults("from sqlalchemy import text\nA = text('''\n  SELECT 1 FROM runs''')\n") == [
        "1: imports sqlalchemy",
        "2: SELECT 1 FROM runs",
    ]
    assert faults("import sqlalchemy as sa\n") == ["1: imports sqlalchemy"]
    assert faults("from orchestrator.pool.tables import runs\n") == ["1: imports orchestrator.pool.tables"]
    assert faults(
        "A = 'select name\\nfrom runs'\nB = 'with x as (select 1) table x'\nC = 'SHOW server_version'\n"
    ) == [
        "1: select name\nfrom runs",
        "2: with x as (select 1) table x",
        "3: SHOW server_version",
    ]
    assert faults("async def f(c):\n    return (await c.execute(OTHER)).all()\n") == ["2: awaits execute()"]


def test_connections_errors_and_sentences_are_no_sql() -> None:
    allowed = """
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.exc import DBAPIError
HELP = 'penstock sql "select 1 from runs"'
SENTENCE = "With a run as (an example), select rollouts"
OTHER = "Select the rollouts from a list"
confine.execute(argv)
"""
    assert faults(allowed) == []
