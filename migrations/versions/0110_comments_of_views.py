"""Comments of views that described another number: the estimator of the KL, the loss, the number of a train step, the advantage.

Revision: 0110. Expands.
"""

from alembic import op

revision = "0110"
down_revision = "0109"
branch_labels = None
depends_on = None

COMMENTS = {
    "COLUMN train_curve.train_step": (
        "1 and up per run: the optimizer''s count",
        "1 and up per run; steps that a rewind undid keep their numbers, so after one the optimizer''s count is lower",
    ),
    "COLUMN train_curve.loss": ("CISPO loss", "the loss that trainer.loss names, without the balance loss"),
    "COLUMN train_curve.kl_k3": (
        "mean over action tokens of r - 1 - log r: how far the policy is from the one that sampled, nats",
        "mean over action tokens of r log r - (r - 1): how far the policy is from the one that sampled, nats",
    ),
    "VIEW reward_breakdown": (
        "Every part of every reward: total = performance + beta*speed + alpha*process; advantage = (total - baseline) / divisor.",
        "Every part of every reward: total = performance + beta*speed + alpha*process; advantage = (return - baseline) / divisor at the first "
        "step, where the return is the total discounted by reward.gamma.",
    ),
}
"""The comment of revision 0108, and the one from this revision on."""


def upgrade() -> None:
    for of, (_, comment) in COMMENTS.items():
        op.execute(f"COMMENT ON {of} IS '{comment}'")


def downgrade() -> None:
    for of, (before, _) in COMMENTS.items():
        op.execute(f"COMMENT ON {of} IS '{before}'")
