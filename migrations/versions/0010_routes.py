"""The experts that a policy's tokens were sent to: one row beside the step, partitioned by run as steps are.

Revision: 0010.
"""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = Path(__file__).resolve().parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0010_routes.sql").read_text().split("\n--;\n"):
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    op.drop_table("step_routes")
    before = (SQL / "0005_partitions.sql").read_text().split("\n--;\n")
    for statement in before[-2:]:  # open_partition and what it says of itself
        op.get_bind().exec_driver_sql(statement)
