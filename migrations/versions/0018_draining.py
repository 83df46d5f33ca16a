"""Runners, gateways and rollout servers can be drained: since when they are asked to take nothing new, and what they still hold.

Revision: 0018.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

WHAT = "pause, resume, cancel, reweigh, drop, retry, drain or undrain"
BEFORE = "pause, resume, cancel, reweigh, drop or retry"


def upgrade() -> None:
    op.add_column(
        "processes",
        sa.Column(
            "draining",
            sa.DateTime(timezone=True),
            comment="since when a person asks it to take no new work; null: it may",
        ),
    )
    op.add_column(
        "processes",
        sa.Column(
            "holds",
            JSONB(none_as_null=True),
            comment="how much it still holds of what drains, since it has heard of that: of its own under self, calls by the URL of their server",
        ),
    )
    op.add_column(
        "rollout_servers",
        sa.Column(
            "draining",
            sa.DateTime(timezone=True),
            comment="since when a person asks that it gets no new calls; null: it may",
        ),
    )
    op.add_column(
        "sessions",
        sa.Column("gateway", sa.Text(), comment="the gateway that has it, as in rollout_servers.owner"),
    )
    op.alter_column("actions", "what", comment=WHAT, existing_comment=BEFORE)


def downgrade() -> None:
    op.alter_column("actions", "what", comment=BEFORE, existing_comment=WHAT)
    op.drop_column("sessions", "gateway")
    op.drop_column("rollout_servers", "draining")
    op.drop_column("processes", "holds")
    op.drop_column("processes", "draining")
