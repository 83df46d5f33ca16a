"""Messages that may end the process that handles them.

Revision: 0111. Expands.
"""

from alembic import op

revision = "0111"
down_revision = "0110"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE suspect_messages (
          digest bytea PRIMARY KEY,
          stream text NOT NULL,
          tries integer NOT NULL,
          process text NOT NULL,
          at timestamptz NOT NULL DEFAULT clock_timestamp()
        )""")
    op.execute(
        "GRANT SELECT ON suspect_messages TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer"
    )


def downgrade() -> None:
    op.execute("DROP TABLE suspect_messages")
