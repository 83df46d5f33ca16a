"""Why a branch is one: steps.branch, and the view over it.

Revision: 0002.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = Path(__file__).resolve().parents[1] / "sql"
MARKS = "Append-only: a marked step (undelivered, auxiliary, version_suspect{}) has train weight 0."


def upgrade() -> None:
    op.create_table_comment("step_marks", MARKS.format(", drift"))
    op.add_column("steps", sa.Column("branch", postgresql.JSONB(), nullable=True))
    for statement in (SQL / "0002_branches.sql").read_text().split("\n--;\n"):
        # exec_driver_sql: colons in the SQL are casts, not parameters.
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    op.execute("DROP VIEW branches")
    op.drop_column("steps", "branch")
    op.create_table_comment("step_marks", MARKS.format(""))
