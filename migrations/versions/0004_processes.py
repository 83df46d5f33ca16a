"""Which processes of a run live, and what their loops are doing; the gateway keeps dead letters.

Revision: 0004.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column(
            "started", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column(
            "heard", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column("stopped", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("loops", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "host", "process"),
        comment="The processes of a run: when each was last heard of, and what its loops work on and wait for.",
        postgresql_with={"fillfactor": "50"},
    )
    op.execute("GRANT SELECT ON processes TO penstock_reader")
    op.execute(
        "GRANT SELECT, INSERT, UPDATE ON processes TO penstock_gateway, penstock_runner, penstock_trainer"
    )
    # A step that no stream can ever take is kept where people look for such things.
    op.execute("GRANT INSERT ON dead_letters TO penstock_gateway")


def downgrade() -> None:
    op.execute("REVOKE INSERT ON dead_letters FROM penstock_gateway")
    op.drop_table("processes")
