"""The artifacts of every step of a task with several steps.

Revision: 0104. Expands: code from before writes step 0 only.
"""

import sqlalchemy as sa
from alembic import op

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None


def _key(*columns: str) -> None:
    op.drop_constraint("artifacts_pkey", "artifacts")
    op.create_primary_key("artifacts_pkey", "artifacts", ["rollout_id", "attempt", *columns])


def upgrade() -> None:
    op.add_column("artifacts", sa.Column("step", sa.SmallInteger, nullable=False, server_default="0"))
    _key("step", "path")


def downgrade() -> None:
    op.execute("DELETE FROM artifacts WHERE step > 0")
    _key("path")
    op.drop_column("artifacts", "step")
