"""The process keys of a run as other processes know them.

Revision: 0112. Expands.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0112"
down_revision = "0111"
branch_labels = None
depends_on = None

COMMENT = (
    "process keys in force at the newest start of an orchestrator of the run, by dotted key: only those that other runs' orchestrators and "
    "dashboards read, and none with secrets; null: no start wrote them"
)


def upgrade() -> None:
    op.add_column("runs", sa.Column("process_config", JSONB(), comment=COMMENT))


def downgrade() -> None:
    op.drop_column("runs", "process_config")
