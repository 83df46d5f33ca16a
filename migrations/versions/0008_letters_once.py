"""A dead letter is kept once, however often it comes.

Revision: 0008.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Of one that was kept twice the first stays: it says when that happened.
    op.execute(
        """DELETE FROM dead_letters d USING dead_letters first
            WHERE coalesce(first.run_id, 0) = coalesce(d.run_id, 0) AND left(first.subject, 256) = left(d.subject, 256)
              AND left(coalesce(first.msg_id, ''), 256) = left(coalesce(d.msg_id, ''), 256)
              AND sha256(first.body) = sha256(d.body) AND first.dead_letter_id < d.dead_letter_id"""
    )
    op.execute(
        """CREATE UNIQUE INDEX dead_letters_once ON dead_letters (coalesce(run_id, 0), left(subject, 256),
            left(coalesce(msg_id, ''), 256), sha256(body))"""
    )


def downgrade() -> None:
    op.drop_index("dead_letters_once", table_name="dead_letters")
