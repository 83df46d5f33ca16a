"""Large files that an attempt left lie in blobs.

Revision: 0105. Expands.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0105"
down_revision = "0104"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("artifacts", sa.Column("parts", ARRAY(sa.LargeBinary), nullable=True))
    op.add_column("artifacts", sa.Column("size", sa.BigInteger, nullable=True))
    op.execute("GRANT INSERT, UPDATE (at) ON blobs TO penstock_runner")


def downgrade() -> None:
    op.execute("REVOKE INSERT, UPDATE (at) ON blobs FROM penstock_runner")
    op.drop_column("artifacts", "size")
    op.drop_column("artifacts", "parts")
