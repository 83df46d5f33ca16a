"""Blobs: the parts of tasks that are too large for a message.

Revision: 0101. Expands.
"""

from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None

_READERS = "penstock_reader, penstock_gateway, penstock_runner, penstock_trainer"


def upgrade() -> None:
    op.execute(
        "CREATE TABLE blobs (sha bytea NOT NULL, body bytea NOT NULL, at timestamptz DEFAULT clock_timestamp() NOT NULL, "
        "CONSTRAINT blobs_pkey PRIMARY KEY (sha), CONSTRAINT blobs_sha CHECK (octet_length(sha) = 32))"
    )
    # Content rarely compresses, and an uncompressed value is read in parts.
    op.execute("ALTER TABLE blobs ALTER COLUMN body SET STORAGE EXTERNAL")
    op.execute(f"GRANT SELECT ON blobs TO {_READERS}")


def downgrade() -> None:
    op.execute("DROP TABLE blobs")
