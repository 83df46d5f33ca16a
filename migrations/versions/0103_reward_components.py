"""The named numbers of a task's reward.json, with the verdict.

Revision: 0103, after 0100.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("verdicts", sa.Column("components", JSONB, nullable=True))


def downgrade() -> None:
    op.drop_column("verdicts", "components")
