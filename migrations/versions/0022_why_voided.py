"""A batch that is quarantined keeps the trainer's sentence about it, which only the trainer's log had.

Revision: 0022.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "batches",
        sa.Column(
            "void_detail",
            sa.Text(),
            comment="of a quarantined batch: what was wrong with it, in the trainer's words; who undid any other says transitions.reason",
        ),
    )


def downgrade() -> None:
    op.drop_column("batches", "void_detail")
