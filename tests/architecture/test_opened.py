"""The database states which code may use it (ops/guides/upgrade.md). Code that opens it otherwise would also run where it may not."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("orchestrator", "trainer", "agents", "sandboxes")
WAYS = {
    "orchestrator.pool.engine": {"open_engine", "bare_engine", "check_revision"},
    "sqlalchemy.ext.asyncio": {"create_async_engine", "async_engine_from_config"},
    "sqlalchemy": {"create_engine"},
    "asyncpg": {"connect", "create_pool"},
}
EXCEPTIONS = {
    "orchestrator/pool/engine.py": "defines them",
    "orchestrator/pool/opened.py": "checks the revision for everything that is not here",
    "orchestrator/pool/reader_login.py": "makes and tries the login of a reader, on any revision",
    "orchestrator/cli/sql.py": "`penstock sql` runs a person's own statement, also to read the revision",
    "orchestrator/deploy/stack.py": "migrates the database, then checks it",
    "orchestrator/deploy/cluster/doctor/__init__.py": "describes a database, also one that cannot be used",
    "orchestrator/deploy/cluster/doctor/postgres.py": "reports the revision as one of several checks",
    "orchestrator/deploy/embedded/configured.py": "describes the server before it checks the revision",
    "orchestrator/deploy/embedded/postgres.py": "the ready check of an embedded server, which has no data pool yet",
    "orchestrator/deploy/embedded/service_sources.py": "asks any PostgreSQL server for its data directory",
}


NAMES = {name for names in WAYS.values() for name in names}


def opens(source: str) -> bool:
    """Whether a module imports a way to open the database, or takes one from an imported module."""
    if not any(name in source for name in NAMES):
        return False
    modules: dict[str, str] = {}
    taken: list[ast.Attribute] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                if WAYS.get(module, set()) & {each.name for each in names}:
                    return True
                modules |= {each.asname or each.name: f"{module}.{each.name}" for each in names}
            case ast.Import(names=names):
                modules |= {each.asname or each.name: each.name for each in names}
            case ast.Attribute(attr=name) if name in NAMES:
                taken.append(node)
    return any(each.attr in WAYS.get(modules.get(ast.unparse(each.value), ""), set()) for each in taken)


def test_only_the_listed_modules_open_the_database_without_the_check_of_its_revision() -> None:
    found = {
        file.relative_to(ROOT).as_posix()
        for part in PARTS
        for file in (ROOT / part).rglob("*.py")
        if opens(file.read_text(encoding="utf-8"))
    }
    assert found == set(EXCEPTIONS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def work():\n    from orchestrator.pool.engine import Role, open_engine", True),
        ("from orchestrator.pool import engine\nengine.open_engine(url)", True),
        ("import orchestrator.pool.engine as e\ne.check_revision(connection)", True),
        ("import asyncpg\nasyncpg.connect(url)", True),
        ("from sqlalchemy.ext.asyncio import create_async_engine as made", True),
        ("from orchestrator.pool.engine import Role\nfrom orchestrator.pool.opened import opened", False),
        ("from orchestrator.tasks.importing import git\ngit.check_revision(commit)", False),
        ("import asyncpg\nraise asyncpg.PostgresError", False),
    ],
)
def test_a_way_to_open_the_database_is_recognized(source: str, expected: bool) -> None:
    assert opens(source) is expected
