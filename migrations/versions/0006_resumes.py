"""Resumes: attempts that go on under another lease, from their recorded steps.

Revision: 0006.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ROLES = "penstock_reader, penstock_gateway, penstock_runner, penstock_trainer"


def upgrade() -> None:
    op.create_table(
        "resumes",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("given_back", sa.Boolean(), nullable=False),
        sa.Column("replay", sa.Text(), nullable=True),
        sa.Column("replayed", sa.Integer(), nullable=True),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("replay IN ('continued', 'diverged', 'interrupted')", name=op.f("resumes_replay")),
        sa.CheckConstraint("steps > 0", name=op.f("resumes_steps")),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.rollout_id"], name=op.f("resumes_rollout_id_fkey")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("resumes_run_id_fkey")),
        sa.PrimaryKeyConstraint("rollout_id", "epoch", name=op.f("resumes_pkey")),
        comment="An attempt that goes on under the lease of `epoch`: its `steps` recorded steps are replayed, then generation goes on. "
        "reason: what ended the lease before; replay and replayed: what became of it (null: under way).",
    )
    op.create_index("resumes_at", "resumes", ["run_id", "at"])
    op.execute(f"GRANT SELECT ON resumes TO {ROLES}")
    op.add_column(
        "attempts", sa.Column("resumable", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column(
        "sessions", sa.Column("replayable", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("sessions", "replayable")
    op.drop_column("attempts", "resumable")
    op.drop_table("resumes")
