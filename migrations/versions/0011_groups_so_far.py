"""How much was trained is read from the newest batch, not counted from all of them: every dispatch asks, under the lock of the queue.

Revision: 0011.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    said = "groups of it and of every committed batch before it"
    op.add_column("batches", sa.Column("groups_so_far", sa.BigInteger(), comment=said))
    op.execute(
        """UPDATE batches b SET groups_so_far = t.total
             FROM (SELECT batch_id, sum(size) OVER (PARTITION BY run_id ORDER BY batch_no) AS total
                     FROM batches WHERE state = 'committed') t
            WHERE b.batch_id = t.batch_id"""
    )
    op.create_check_constraint(
        "groups_so_far", "batches", "state <> 'committed' OR groups_so_far IS NOT NULL"
    )


def downgrade() -> None:
    op.drop_constraint(op.f("batches_groups_so_far"), "batches", type_="check")
    op.drop_column("batches", "groups_so_far")
