"""After an absence a lease gets its time once until its owner renews it, whichever orchestrator was away, and however often.

Revision: 0021.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "rollouts",
        sa.Column(
            "graced_until",
            sa.DateTime(timezone=True),
            comment="the end that a reaper gave the lease after an absence: no second one while lease_until is still this",
        ),
    )


def downgrade() -> None:
    op.drop_column("rollouts", "graced_until")
