"""The database says how old code may be that runs on it, so that old and new processes may work side by side while an upgrade rolls.

Revision: 0017.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

READERS = "penstock_reader, penstock_gateway, penstock_runner, penstock_trainer"


def upgrade() -> None:
    op.create_table(
        "compatibility",
        sa.Column(
            "one",
            sa.Boolean(),
            server_default=sa.text("true"),
            nullable=False,
            comment="true: the table has one row",
        ),
        sa.Column(
            "oldest_code",
            sa.Text(),
            nullable=False,
            comment="revision of the oldest code that may run on this database; the last contraction set it",
        ),
        sa.PrimaryKeyConstraint("one", name=op.f("compatibility_pkey")),
        sa.CheckConstraint("one", name=op.f("compatibility_one")),
        comment="Which code may run on the database: of the revision that alembic_version names, newer, or older down to oldest_code.",
    )
    op.execute(f"GRANT SELECT ON compatibility TO {READERS}")
    op.execute("INSERT INTO compatibility (oldest_code) VALUES ('0016')")


def downgrade() -> None:
    op.drop_table("compatibility")
