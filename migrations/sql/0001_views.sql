CREATE VIEW trajectory AS
SELECT s.run_id, r.group_id, s.rollout_id, s.attempt, s.idx, g.domain, g.purpose, g.label, g.scaffold, t.name AS task,
       s.agent, s.kind, s.parent_idx, s.keep_len, s.state_len, s.full_len - s.state_len AS action_tokens, s.v_lo, s.v_hi,
       s.finish, s.parse, s.t_queue, s.t_first, s.t_gen, s.t_gap, s.at,
       m.appended, m.reply ->> 'reasoning' AS reasoning, m.reply ->> 'content' AS content, m.reply -> 'tool_calls' AS tool_calls,
       (SELECT array_agg(k.reason ORDER BY k.reason) FROM step_marks k
         WHERE k.run_id = s.run_id AND k.rollout_id = s.rollout_id AND k.attempt = s.attempt AND k.idx = s.idx) AS marks,
       s.attempt = r.attempt AS current
FROM steps s
JOIN rollouts r ON r.rollout_id = s.rollout_id
JOIN groups g ON g.group_id = r.group_id
JOIN tasks t ON t.task_id = g.task_id
LEFT JOIN messages m ON m.run_id = s.run_id AND m.rollout_id = s.rollout_id AND m.attempt = s.attempt AND m.idx = s.idx
--;
COMMENT ON VIEW trajectory IS 'Steps as a conversation, in idx order: what was added, what the policy answered, with versions and timings. current = of the attempt that counts.'
--;
CREATE VIEW step_tokens AS
SELECT s.run_id, s.rollout_id, s.attempt, s.idx, (u.pos - 1)::int AS pos, u.token_id, u.logprob,
       (SELECT s.spans[3*i + 1] FROM generate_series(0, cardinality(s.spans)/3 - 1) i
         WHERE u.pos - 1 >= s.spans[3*i + 2] AND u.pos - 1 < s.spans[3*i + 3]) AS version
FROM steps s, unnest(i4(s.action), f4(s.logprobs)) WITH ORDINALITY u(token_id, logprob, pos)
--;
COMMENT ON VIEW step_tokens IS 'One row per action token: id, behavior logprob and the policy version that made it. Always filter by run_id.'
--;
CREATE VIEW latest_rewards AS
SELECT DISTINCT ON (rollout_id) * FROM rewards ORDER BY rollout_id, revision DESC
--;
COMMENT ON VIEW latest_rewards IS 'The newest revision of every rollout''s reward.'
--;
CREATE VIEW reward_breakdown AS
SELECT w.run_id, r.group_id, w.rollout_id, r.member, w.revision, w.attempt, g.domain, g.purpose, g.scaffold,
       w.performance, w.beta, w.speed, w.alpha, w.process, w.total, w.t_agent, w.t_base,
       b.batch_no, w.baseline, w.divisor, w.advantage, w.per_step
FROM rewards w
JOIN rollouts r ON r.rollout_id = w.rollout_id
JOIN groups g ON g.group_id = r.group_id
LEFT JOIN (batch_rollouts br JOIN batches b ON b.batch_id = br.batch_id AND b.state <> 'voided')
  ON br.rollout_id = w.rollout_id AND br.reward_revision = w.revision
--;
COMMENT ON VIEW reward_breakdown IS 'Every part of every reward: total = performance + beta*speed + alpha*process; advantage = (total - baseline) / divisor.'
--;
CREATE VIEW window_state AS
WITH head AS (
  SELECT q.run_id, (c.config -> 'queue' ->> 'window')::bigint AS w, (c.config -> 'queue' ->> 'capacity')::bigint AS n,
         (SELECT min(g.seq) FROM groups g WHERE g.run_id = q.run_id AND NOT g.done AND g.state <> 'taken' AND g.seq IS NOT NULL) AS head
  FROM queue q JOIN runs c ON c.run_id = q.run_id)
SELECT g.run_id, g.seq, g.group_id, g.domain, g.scaffold, g.state, h.head, h.w AS window_size, h.n AS capacity,
       g.seq < h.head + h.w AS inside, g.seq = h.head AS is_head, g.dispatched, now() - g.dispatched AS age,
       (SELECT count(*) FROM rollouts r WHERE r.group_id = g.group_id AND r.state IN ('verified', 'lost')) AS members_done, g.size
FROM groups g JOIN head h ON h.run_id = g.run_id
WHERE g.seq IS NOT NULL AND NOT g.done
--;
COMMENT ON VIEW window_state IS 'The open queue positions: the head is the oldest position neither taken nor resolved; only ready positions inside the window may be taken.'
--;
CREATE VIEW token_lineage AS
SELECT s.run_id, s.rollout_id, s.attempt, s.idx, b.batch_no, b.state AS batch_state, b.version AS made_version,
       s.spans[3*i + 1] AS version, s.spans[3*i + 2] AS from_pos, s.spans[3*i + 3] AS to_pos, br.advantage
FROM batch_rollouts br
JOIN batches b ON b.batch_id = br.batch_id AND b.state <> 'voided'
JOIN steps s ON s.run_id = b.run_id AND s.rollout_id = br.rollout_id AND s.attempt = br.attempt,
     generate_series(0, cardinality(s.spans)/3 - 1) i
--;
COMMENT ON VIEW token_lineage IS 'Which batch used which action tokens, and the policy version that made them.'
--;
CREATE VIEW staleness AS
SELECT l.run_id, l.batch_no,
       coalesce((SELECT max(p.version) FROM policy_versions p WHERE p.run_id = l.run_id AND coalesce(p.batch_no, -1) < l.batch_no), 0) - l.version AS staleness,
       sum(l.to_pos - l.from_pos)::bigint AS tokens
FROM token_lineage l GROUP BY l.run_id, l.batch_no, l.version
--;
COMMENT ON VIEW staleness IS 'Action tokens per batch by staleness: the trainer''s version before the batch minus the version that made the token.'
