"""What the sandbox of an attempt ran on.

Revision: 0106. Expands.
"""

import sqlalchemy as sa
from alembic import op

revision = "0106"
down_revision = "0105"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("system", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "system")
