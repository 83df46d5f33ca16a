"""Evaluations are found by suite and version, and how far they are is known from an index alone: the dashboard asks at every look.

Revision: 0019.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "groups_eval",
        "groups",
        ["run_id", sa.text("coalesce(label, '')"), "pinned_version"],
        postgresql_include=["label", "size", "done", "group_id", "ended"],
        postgresql_where=sa.text("purpose = 'eval'"),
    )


def downgrade() -> None:
    op.drop_index("groups_eval", "groups")
