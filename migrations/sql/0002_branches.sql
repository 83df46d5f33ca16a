CREATE VIEW branches AS
SELECT s.run_id, r.group_id, s.rollout_id, s.attempt, s.idx, g.scaffold, s.agent, s.kind, s.parent_idx, s.keep_len, s.state_len,
       s.branch_reason AS reason, (s.branch ->> 'near')::int AS near, (s.branch ->> 'turn')::int AS turn,
       s.branch ->> 'field' AS field, s.branch ->> 'recorded' AS recorded, s.branch ->> 'sent' AS sent, s.at
FROM steps s
JOIN rollouts r ON r.rollout_id = s.rollout_id
JOIN groups g ON g.group_id = r.group_id
WHERE s.branch_reason IS NOT NULL
--;
COMMENT ON VIEW branches IS 'Steps that are no plain continuation, and why: the step whose conversation is nearest (near), the message (turn) and the field where the request first differs, what was recorded there and what was sent.'
--;
GRANT SELECT ON branches TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer
