"""The views show the reward that counts: it builds on the newest verdict of a verified rollout. Of a pruned run they show no zeros.

Revision: 0109. Expands.
"""

import re
from pathlib import Path

from alembic import op

revision = "0109"
down_revision = "0108"
branch_labels = None
depends_on = None

BEFORE = Path(__file__).resolve().parents[1] / "sql" / "views.sql"
CHANGED = re.compile(
    r"(CREATE VIEW|COMMENT ON VIEW|COMMENT ON COLUMN) (latest_rewards|group_summary|rollout_summary)\b"
)

LATEST_REWARDS = """
CREATE OR REPLACE VIEW latest_rewards AS
SELECT DISTINCT ON (w.rollout_id) w.*
FROM rewards w JOIN rollouts r ON r.rollout_id = w.rollout_id AND r.state = 'verified'
WHERE w.verdict_revision = (SELECT max(v.revision) FROM verdicts v WHERE v.rollout_id = w.rollout_id)
ORDER BY w.rollout_id, w.revision DESC"""
GROUP_SUMMARY = """
CREATE OR REPLACE VIEW group_summary AS
SELECT g.run_id, g.seq, g.group_id, g.submission, t.name AS task, g.domain, g.difficulty, g.scaffold, g.purpose, g.label, g.pinned_version,
       g.state, g.reason, g.size, m.verified, m.lost, m.retries, m.solved, m.performance, m.spread, b.batch_no,
       extract(epoch FROM g.dispatched - g.created)\\:\\:float8 AS accepted_s,
       extract(epoch FROM coalesce(g.ready, g.ended) - g.dispatched)\\:\\:float8 AS running_s,
       extract(epoch FROM i.taken - g.ready)\\:\\:float8 AS ready_s, extract(epoch FROM g.ended - i.taken)\\:\\:float8 AS training_s,
       g.created, g.dispatched, g.ready, i.taken, g.ended
FROM groups g
JOIN tasks t ON t.task_id = g.task_id
LEFT JOIN batch_items i ON i.group_id = g.group_id AND NOT i.voided
LEFT JOIN batches b ON b.batch_id = i.batch_id
LEFT JOIN LATERAL (
  SELECT count(*) FILTER (WHERE r.state = 'verified') AS verified, count(*) FILTER (WHERE r.state = 'lost') AS lost, sum(r.attempt - 1) AS retries,
         count(*) FILTER (WHERE w.performance = 1) AS solved, avg(w.performance) AS performance, max(w.performance) - min(w.performance) AS spread
    FROM rollouts r
    LEFT JOIN LATERAL (
      SELECT v.reward AS performance FROM verdicts v WHERE v.rollout_id = r.rollout_id AND r.state = 'verified'
       ORDER BY v.revision DESC LIMIT 1) w ON true
   WHERE r.group_id = g.group_id) m ON true"""
ROLLOUT_SUMMARY = """
CREATE OR REPLACE VIEW rollout_summary AS
SELECT r.run_id, g.seq, r.group_id, r.rollout_id, r.member, t.name AS task, g.domain, g.scaffold, g.purpose, g.label, g.pinned_version,
       g.state AS group_state, r.state, r.attempt, a.failure_class, coalesce(a.reason, r.reason) AS reason,
       w.performance, w.total AS reward, x.batch_no, x.advantage,
       CASE WHEN u.pruned IS NULL THEN s.steps ELSE a.steps END AS steps, s.action_tokens, s.longest, s.v_lo, s.v_hi,
       CASE WHEN u.pruned IS NULL THEN s.ill_formed END AS ill_formed, CASE WHEN u.pruned IS NULL THEN s.branches END AS branches,
       a.agent_s, a.queued_s, a.generation_s, c.verify_s, a.started, a.ended, a.waiting_s
FROM rollouts r
JOIN runs u ON u.run_id = r.run_id
JOIN groups g ON g.group_id = r.group_id
JOIN tasks t ON t.task_id = g.task_id
LEFT JOIN attempts a ON a.rollout_id = r.rollout_id AND a.attempt = r.attempt
LEFT JOIN LATERAL (
  SELECT w.performance, w.total FROM rewards w
   WHERE w.rollout_id = r.rollout_id AND r.state = 'verified'
     AND w.verdict_revision = (SELECT max(v.revision) FROM verdicts v WHERE v.rollout_id = r.rollout_id)
   ORDER BY w.revision DESC LIMIT 1) w ON true
LEFT JOIN LATERAL (
  SELECT verify_s FROM verdicts WHERE rollout_id = r.rollout_id ORDER BY revision DESC LIMIT 1) c ON true
LEFT JOIN LATERAL (
  SELECT b.batch_no, br.advantage FROM batch_items i JOIN batches b ON b.batch_id = i.batch_id
    JOIN batch_rollouts br ON br.batch_id = i.batch_id AND br.rollout_id = r.rollout_id
   WHERE i.group_id = r.group_id AND NOT i.voided) x ON true
LEFT JOIN LATERAL (
  SELECT count(*) AS steps, sum(full_len - state_len)\\:\\:bigint AS action_tokens, max(full_len) AS longest, min(v_lo) AS v_lo, max(v_hi) AS v_hi,
         count(*) FILTER (WHERE parse <> 'ok') AS ill_formed,
         count(*) FILTER (WHERE branch_reason IS NOT NULL) AS branches
    FROM steps WHERE run_id = r.run_id AND rollout_id = r.rollout_id AND attempt = r.attempt) s ON true"""
COMMENTS = {
    "VIEW latest_rewards": "The reward of every verified rollout: the newest revision of its newest verdict.",
    "COLUMN group_summary.solved": "verified members with performance 1",
    "COLUMN group_summary.performance": "mean of its verified members, 0 to 1",
    "COLUMN group_summary.spread": "best minus worst performance of its verified members; 0: the group gives no training signal",
    "COLUMN rollout_summary.performance": "newest verdict''s reward, as it was rewarded, 0 to 1; null: not rewarded, or lost",
    "COLUMN rollout_summary.steps": "recorded steps of the attempt that counts; of a pruned run as the attempt announced them",
    "COLUMN rollout_summary.ill_formed": "steps whose output could not be parsed; null: pruned",
    "COLUMN rollout_summary.branches": "steps that are not a plain continuation; null: pruned",
    "COLUMN rollout_summary.reward": "total of its newest verdict: performance + beta*speed + alpha*process",
}


def upgrade() -> None:
    for view in (LATEST_REWARDS, GROUP_SUMMARY, ROLLOUT_SUMMARY):
        op.execute(view)
    for of, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {of} IS '{comment}'")


def downgrade() -> None:
    for statement in BEFORE.read_text().split(";\n"):
        if CHANGED.match(statement.strip()):
            again = statement.strip().replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1)
            op.execute(again.replace(":", r"\:"))
