"""The history knows messages: who dropped a dead one, or published it again, and why.

Revision: 0007.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _allow("group", "rollout", "batch", "run", "message")


def downgrade() -> None:
    op.execute("ALTER TABLE transitions DISABLE TRIGGER transitions_immutable")
    op.execute("DELETE FROM transitions WHERE kind = 'message'")
    op.execute("ALTER TABLE transitions ENABLE TRIGGER transitions_immutable")
    _allow("group", "rollout", "batch", "run")


def _allow(*kinds: str) -> None:
    name = op.f("transitions_kind")
    op.drop_constraint(name, "transitions")
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    op.create_check_constraint(name, "transitions", f"kind IN ({listed})")
