"""The data pool: tables, indexes, functions, triggers, views and roles.

Its SQL was written once and does not follow orchestrator/pool/tables: a later change of a table is a later migration. env.py sets the column
comments. Older revisions are removed: a database at one of them is refused (orchestrator/pool/engine.py).

Revision: 0108.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from alembic import context, op

from orchestrator.pool.rights import make_roles

revision = "0108"
down_revision = None
branch_labels = None
depends_on = None

SQL = Path(__file__).resolve().parents[1] / "sql"
FILES = ("tables.sql", "indexes.sql", "functions.sql", "triggers.sql", "views.sql", "roles.sql")


def upgrade() -> None:
    if not context.is_offline_mode() and (lacking := make_roles(op.get_bind())):
        print(f"penstock: {lacking}", file=sys.stderr)
    for file in FILES:
        for statement in statements(file):
            op.execute(statement.replace(":", r"\:"))  # colons in the SQL are casts and prose, not parameters
    op.execute("INSERT INTO compatibility (oldest_code) VALUES ('0100')")


def downgrade() -> None:
    for kind, file in (("VIEW", "views.sql"), ("TABLE", "tables.sql"), ("FUNCTION", "functions.sql")):
        made = re.findall(rf"^CREATE {kind} (\w+)", (SQL / file).read_text(), re.M)
        for name in reversed(made):
            op.execute(f"DROP {kind} {name}")
    # The roles stay: other databases of the server may use them.


def statements(file: str) -> Iterator[str]:
    """The statements of a file. A statement ends with a semicolon at the end of a line, outside of a function's body."""
    statement = ""
    for line in (SQL / file).read_text().splitlines(keepends=True):
        statement += line
        if line.endswith(";\n") and statement.count("$$") % 2 == 0:
            yield statement.strip().removesuffix(";")
            statement = ""
    assert not statement.strip(), f"{file} ends in the middle of a statement"
