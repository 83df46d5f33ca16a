"""Processes say which code they run, so that a host that was forgotten in an upgrade is found.

Revision: 0020.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "processes",
        sa.Column(
            "code",
            sa.Text(),
            comment="what code it runs: 12 digits of a sha256 over the orchestrator's files; null: code from before there was this",
        ),
    )


def downgrade() -> None:
    op.drop_column("processes", "code")
