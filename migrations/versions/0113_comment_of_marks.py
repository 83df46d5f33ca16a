"""The comment of the marks of steps: not every mark keeps a step out of training.

Revision: 0113. Expands.
"""

from alembic import op

revision = "0113"
down_revision = "0112"
branch_labels = None
depends_on = None

BEFORE = "why the step has train weight 0; null: it has none"
COMMENT = "why the step has train weight 0, with cut_off alone only where its advantage is not negative; null: no marks"


def upgrade() -> None:
    op.execute(f"COMMENT ON COLUMN trajectory.marks IS '{COMMENT}'")


def downgrade() -> None:
    op.execute(f"COMMENT ON COLUMN trajectory.marks IS '{BEFORE}'")
