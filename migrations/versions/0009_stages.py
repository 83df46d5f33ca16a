"""Stages by index: what waits is found by the difficulty of its task, and a group keeps the stage that it was dispatched in.

Revision: 0009.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    difficulty = "of its task, where stages follow one another; null elsewhere"
    op.add_column("groups", sa.Column("difficulty", sa.Text(), comment=difficulty))
    stage = "number of the stage that it was dispatched in; null: the first"
    op.add_column("groups", sa.Column("stage", sa.SmallInteger(), comment=stage))
    op.execute(
        """UPDATE groups g SET difficulty = coalesce(t.settings->'metadata'->>'difficulty', 'unknown') FROM tasks t, runs r
            WHERE t.task_id = g.task_id AND r.run_id = g.run_id AND g.state = 'accepted' AND g.purpose = 'train'
              AND jsonb_array_length(coalesce(r.config->'stage'->'then', '[]')) > 0"""
    )
    op.create_index(
        "groups_of_kind",
        "groups",
        ["run_id", "difficulty", "domain", "group_id"],
        postgresql_where=sa.text("state = 'accepted' AND difficulty IS NOT NULL"),
    )
    # Evaluations and recordings that wait are found without reading the training groups that do.
    other = sa.text("state = 'accepted' AND purpose <> 'train'")
    op.create_index("groups_other", "groups", ["run_id", "group_id"], postgresql_where=other)


def downgrade() -> None:
    op.drop_index("groups_other", table_name="groups")
    op.drop_index("groups_of_kind", table_name="groups")
    op.drop_column("groups", "stage")
    op.drop_column("groups", "difficulty")
