r"""Paths of any length: the artifacts of an attempt are unique by the hash of their path.

An index row holds 2,704 bytes at most, and an agent may name longer paths. `decode` with doubled backslashes gives the bytes of a text; a cast
to bytea would read the backslashes as escapes.

Revision: 0107. Expands.
"""

import sqlalchemy as sa
from alembic import op

revision = "0107"
down_revision = "0106"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_constraint("artifacts_pkey", "artifacts")
    path = sa.text(r"sha256(decode(replace(path, '\', '\\'), 'escape'))")
    op.create_index("artifacts_once", "artifacts", ["rollout_id", "attempt", "step", path], unique=True)


def downgrade() -> None:
    op.execute("DELETE FROM artifacts WHERE octet_length(path) > 2600")
    op.execute("DROP INDEX artifacts_once")
    op.execute("ALTER TABLE artifacts ADD PRIMARY KEY (rollout_id, attempt, step, path)")
