"""What ended lately, for the circuit breaker.

Revision: 0003.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "attempts_ended", "attempts", ["run_id", "ended"], postgresql_where=sa.text("ended IS NOT NULL")
    )


def downgrade() -> None:
    op.drop_index("attempts_ended", "attempts")
