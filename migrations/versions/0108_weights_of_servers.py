"""Digests of weights, next to the version that they are called by: of those that a rollout server serves, and of those that generated a step.

Revision: 0108. Expands.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0108"
down_revision = "0107"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rollout_servers", sa.Column("weights_digest", sa.Text, nullable=True))
    op.add_column("steps", sa.Column("weights", ARRAY(sa.Text), nullable=True))


def downgrade() -> None:
    op.drop_column("steps", "weights")
    op.drop_column("rollout_servers", "weights_digest")
