"""An attempt keeps where its runner's seconds went, by phase, which nothing knew but the sum.

Revision: 0023.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "attempts",
        sa.Column(
            "spent",
            JSONB(),
            comment="seconds of its runner under its last lease, by phase: session, sandbox, agent, changes, seal, other; null: not told",
        ),
    )


def downgrade() -> None:
    op.drop_column("attempts", "spent")
