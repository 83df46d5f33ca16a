-- Views for people, each with what it and its columns mean (ops/guides/sql-cookbook.md).

CREATE VIEW trajectory AS
SELECT s.run_id, r.group_id, s.rollout_id, s.attempt, s.idx, g.domain, g.purpose, g.label, g.scaffold, t.name AS task,
       s.agent, s.kind, s.parent_idx, s.keep_len, s.state_len, s.full_len - s.state_len AS action_tokens, s.v_lo, s.v_hi,
       s.finish, s.parse, s.t_queue, s.t_first, s.t_gen, s.t_gap, s.at,
       m.appended, m.reply ->> 'reasoning' AS reasoning, m.reply ->> 'content' AS content, m.reply -> 'tool_calls' AS tool_calls,
       (SELECT array_agg(k.reason ORDER BY k.reason) FROM step_marks k
         WHERE k.run_id = s.run_id AND k.rollout_id = s.rollout_id AND k.attempt = s.attempt AND k.idx = s.idx) AS marks,
       s.attempt = r.attempt AS current, s.ended
FROM steps s
JOIN rollouts r ON r.rollout_id = s.rollout_id
JOIN groups g ON g.group_id = r.group_id
JOIN tasks t ON t.task_id = g.task_id
LEFT JOIN messages m ON m.run_id = s.run_id AND m.rollout_id = s.rollout_id AND m.attempt = s.attempt AND m.idx = s.idx;
COMMENT ON VIEW trajectory IS 'Steps as a conversation, in idx order: what was added, what the policy answered, with versions and timings. current = of the attempt that counts.';
COMMENT ON COLUMN trajectory.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN trajectory.group_id IS 'the group; g<group_id> in `penstock dead`';
COMMENT ON COLUMN trajectory.rollout_id IS 'the rollout';
COMMENT ON COLUMN trajectory.attempt IS 'the attempt';
COMMENT ON COLUMN trajectory.idx IS 'commit index over all branches of the attempt, 0 and up';
COMMENT ON COLUMN trajectory.domain IS 'what its queue share is counted for: coding, reasoning, …';
COMMENT ON COLUMN trajectory.purpose IS 'train | eval | record; only train groups get a queue position';
COMMENT ON COLUMN trajectory.label IS 'name that the publisher gave to a set of submissions';
COMMENT ON COLUMN trajectory.scaffold IS 'the agent that tries it';
COMMENT ON COLUMN trajectory.task IS 'name of the task';
COMMENT ON COLUMN trajectory.agent IS 'which agent of the scaffold made the request: main, or a sub-agent''s name';
COMMENT ON COLUMN trajectory.kind IS 'root | continues (keeps all of its parent) | rewrites (keeps a part: compaction, another branch)';
COMMENT ON COLUMN trajectory.parent_idx IS 'the step that it goes on from; null for a root';
COMMENT ON COLUMN trajectory.keep_len IS 'tokens kept of the parent''s full sequence, or of the prompt';
COMMENT ON COLUMN trajectory.state_len IS 'tokens of the whole context of the request: keep_len + delta';
COMMENT ON COLUMN trajectory.action_tokens IS 'tokens that the policy made';
COMMENT ON COLUMN trajectory.v_lo IS 'lowest policy version that made a token of the action';
COMMENT ON COLUMN trajectory.v_hi IS 'highest policy version that made a token of the action';
COMMENT ON COLUMN trajectory.finish IS 'stop | length | abort';
COMMENT ON COLUMN trajectory.parse IS 'ok | ill_formed';
COMMENT ON COLUMN trajectory.t_queue IS 'seconds of this call in which it was not generated, until its reply; concurrent calls overlap: do not add them up';
COMMENT ON COLUMN trajectory.t_first IS 'seconds until the first token, waiting left out: a part of t_gen';
COMMENT ON COLUMN trajectory.t_gen IS 'seconds of generation, waiting left out, the first token included';
COMMENT ON COLUMN trajectory.t_gap IS 'seconds without any call of the attempt in flight, since the step before: the agent and its tools; gaps do not overlap';
COMMENT ON COLUMN trajectory.at IS 'when it was recorded, by the database''s clock';
COMMENT ON COLUMN trajectory.appended IS 'the messages that the request added';
COMMENT ON COLUMN trajectory.reasoning IS 'what the policy thought, as text';
COMMENT ON COLUMN trajectory.content IS 'its content, as text';
COMMENT ON COLUMN trajectory.tool_calls IS 'the calls that it made: [{name, arguments}]';
COMMENT ON COLUMN trajectory.marks IS 'why the step has train weight 0; null: it has none';
COMMENT ON COLUMN trajectory.current IS 'true: of the attempt that counts';
COMMENT ON COLUMN trajectory.ended IS 'when its reply was ready, by the database''s clock; its call came at ended - t_gen - t_queue; null: older than this column';

CREATE VIEW step_tokens AS
SELECT s.run_id, s.rollout_id, s.attempt, s.idx, (u.pos - 1)::int AS pos, u.token_id, u.logprob,
       (SELECT s.spans[3*i + 1] FROM generate_series(0, cardinality(s.spans)/3 - 1) i
         WHERE u.pos - 1 >= s.spans[3*i + 2] AND u.pos - 1 < s.spans[3*i + 3]) AS version
FROM steps s, unnest(i4(s.action), f4(s.logprobs)) WITH ORDINALITY u(token_id, logprob, pos);
COMMENT ON VIEW step_tokens IS 'One row per action token: id, behavior logprob and the policy version that made it. Always filter by run_id.';
COMMENT ON COLUMN step_tokens.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN step_tokens.rollout_id IS 'the rollout';
COMMENT ON COLUMN step_tokens.attempt IS 'the attempt';
COMMENT ON COLUMN step_tokens.idx IS 'commit index over all branches of the attempt, 0 and up';
COMMENT ON COLUMN step_tokens.pos IS 'place in the action, 0 and up';
COMMENT ON COLUMN step_tokens.token_id IS 'the token';
COMMENT ON COLUMN step_tokens.logprob IS 'its behavior logprob';
COMMENT ON COLUMN step_tokens.version IS 'the policy version that made it';

CREATE VIEW branches AS
SELECT s.run_id, r.group_id, s.rollout_id, s.attempt, s.idx, g.scaffold, s.agent, s.kind, s.parent_idx, s.keep_len, s.state_len,
       s.branch_reason AS reason, (s.branch ->> 'near')::int AS near, (s.branch ->> 'turn')::int AS turn,
       s.branch ->> 'field' AS field, s.branch ->> 'recorded' AS recorded, s.branch ->> 'sent' AS sent, s.at
FROM steps s
JOIN rollouts r ON r.rollout_id = s.rollout_id
JOIN groups g ON g.group_id = r.group_id
WHERE s.branch_reason IS NOT NULL;
COMMENT ON VIEW branches IS 'Steps that are not a plain continuation, and why: the step whose conversation is nearest (near), the message (turn) and the field where the request first differs, what was recorded there and what was sent.';
COMMENT ON COLUMN branches.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN branches.group_id IS 'the group; g<group_id> in `penstock dead`';
COMMENT ON COLUMN branches.rollout_id IS 'the rollout';
COMMENT ON COLUMN branches.attempt IS 'the attempt';
COMMENT ON COLUMN branches.idx IS 'commit index over all branches of the attempt, 0 and up';
COMMENT ON COLUMN branches.scaffold IS 'the agent that tries it';
COMMENT ON COLUMN branches.agent IS 'which agent of the scaffold made the request: main, or a sub-agent''s name';
COMMENT ON COLUMN branches.kind IS 'root | continues (keeps all of its parent) | rewrites (keeps a part: compaction, another branch)';
COMMENT ON COLUMN branches.parent_idx IS 'the step that it goes on from; null for a root';
COMMENT ON COLUMN branches.keep_len IS 'tokens kept of the parent''s full sequence, or of the prompt';
COMMENT ON COLUMN branches.state_len IS 'tokens of the whole context of the request: keep_len + delta';
COMMENT ON COLUMN branches.reason IS 'sibling | rewritten | shortened | tools | new_conversation | foreign_turn | closed | per_request, or what the scaffold says of its own context management';
COMMENT ON COLUMN branches.near IS 'idx of the step whose conversation is nearest';
COMMENT ON COLUMN branches.turn IS 'index of the first message that differs';
COMMENT ON COLUMN branches.field IS 'role | calls | text | reasoning | tools | ids | end: where that message differs';
COMMENT ON COLUMN branches.recorded IS 'what was recorded there';
COMMENT ON COLUMN branches.sent IS 'what the request has there';
COMMENT ON COLUMN branches.at IS 'when it was recorded, by the database''s clock';

CREATE VIEW latest_rewards AS
SELECT DISTINCT ON (rollout_id) * FROM rewards ORDER BY rollout_id, revision DESC;
COMMENT ON VIEW latest_rewards IS 'The newest revision of every rollout''s reward.';
COMMENT ON COLUMN latest_rewards.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN latest_rewards.rollout_id IS 'the rollout that was rewarded';
COMMENT ON COLUMN latest_rewards.revision IS '1 and up; the newest counts, but a batch pins the one that it used';
COMMENT ON COLUMN latest_rewards.verdict_revision IS 'the verdict that it builds on';
COMMENT ON COLUMN latest_rewards.attempt IS 'the attempt that was rewarded';
COMMENT ON COLUMN latest_rewards.performance IS 'the verdict''s reward, 0 to 1, paid once on the last step';
COMMENT ON COLUMN latest_rewards.speed IS 'performance * h(t_agent/t_base), h(x) = 1/(1 + x); paid once, times beta';
COMMENT ON COLUMN latest_rewards.process IS 'sum over the steps of the weighted process signals; paid times alpha';
COMMENT ON COLUMN latest_rewards.alpha IS '1, or less where process would exceed reward.process_cap; where process_by_signal is null: a weight over the number of steps';
COMMENT ON COLUMN latest_rewards.beta IS 'weight of speed';
COMMENT ON COLUMN latest_rewards.total IS 'performance + beta*speed + alpha*process';
COMMENT ON COLUMN latest_rewards.t_agent IS 'seconds that the agent took, without platform queueing';
COMMENT ON COLUMN latest_rewards.t_base IS 'seconds that speed is measured against';
COMMENT ON COLUMN latest_rewards.baseline IS 'what was taken off the returns: the group''s mean, or the mean of the others; null: no advantage was computed';
COMMENT ON COLUMN latest_rewards.divisor IS 'what the difference was divided by; 1 unless advantages are normalised';
COMMENT ON COLUMN latest_rewards.advantage IS 'of the first step; null where the group gives no training signal';
COMMENT ON COLUMN latest_rewards.per_step IS '[{idx, process, signals, paid, speed, performance, reward, weight, return_to_go, advantage}]; weight 0: does not train';
COMMENT ON COLUMN latest_rewards.at IS 'when it was computed, by the database''s clock';
COMMENT ON COLUMN latest_rewards.t_base_origin IS 'where t_base comes from: reference (the task''s) | siblings (their median) | itself; null: not paid, or older than this column';
COMMENT ON COLUMN latest_rewards.process_by_signal IS '{signal: what it added to total, over all steps}; their sum is alpha*process; null: older than this column';
COMMENT ON COLUMN latest_rewards.sd_log_t IS 'standard deviation of ln(t_agent) over the group''s members that succeeded; null: fewer than two';
COMMENT ON COLUMN latest_rewards.speed_noise IS 'sd(ln t_agent) of replays of one rollout, which sd_log_t was compared with; null: not measured';
COMMENT ON COLUMN latest_rewards.silent IS 'why the group gives no training signal, in words; null: it trains, or is not for training';

CREATE VIEW reward_breakdown AS
SELECT w.run_id, r.group_id, w.rollout_id, r.member, w.revision, w.attempt, g.domain, g.purpose, g.scaffold,
       w.performance, w.beta, w.speed, w.alpha, w.process, w.total, w.t_agent, w.t_base,
       b.batch_no, w.baseline, w.divisor, w.advantage, w.per_step, w.t_base_origin, w.process_by_signal, w.sd_log_t, w.speed_noise, w.silent
FROM rewards w
JOIN rollouts r ON r.rollout_id = w.rollout_id
JOIN groups g ON g.group_id = r.group_id
LEFT JOIN (batch_rollouts br JOIN batches b ON b.batch_id = br.batch_id AND b.state <> 'voided')
  ON br.rollout_id = w.rollout_id AND br.reward_revision = w.revision;
COMMENT ON VIEW reward_breakdown IS 'Every part of every reward: total = performance + beta*speed + alpha*process; advantage = (total - baseline) / divisor.';
COMMENT ON COLUMN reward_breakdown.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN reward_breakdown.group_id IS 'the group that it is a member of';
COMMENT ON COLUMN reward_breakdown.rollout_id IS 'the rollout that was rewarded';
COMMENT ON COLUMN reward_breakdown.member IS '0 to size - 1 in its group';
COMMENT ON COLUMN reward_breakdown.revision IS '1 and up; the newest counts, but a batch pins the one that it used';
COMMENT ON COLUMN reward_breakdown.attempt IS 'the attempt that was rewarded';
COMMENT ON COLUMN reward_breakdown.domain IS 'what its queue share is counted for: coding, reasoning, …';
COMMENT ON COLUMN reward_breakdown.purpose IS 'train | eval | record; only train groups get a queue position';
COMMENT ON COLUMN reward_breakdown.scaffold IS 'the agent that tries it';
COMMENT ON COLUMN reward_breakdown.performance IS 'the verdict''s reward, 0 to 1, paid once on the last step';
COMMENT ON COLUMN reward_breakdown.beta IS 'weight of speed';
COMMENT ON COLUMN reward_breakdown.speed IS 'performance * h(t_agent/t_base), h(x) = 1/(1 + x); paid once, times beta';
COMMENT ON COLUMN reward_breakdown.alpha IS '1, or less where process would exceed reward.process_cap; where process_by_signal is null: a weight over the number of steps';
COMMENT ON COLUMN reward_breakdown.process IS 'sum over the steps of the weighted process signals; paid times alpha';
COMMENT ON COLUMN reward_breakdown.total IS 'performance + beta*speed + alpha*process';
COMMENT ON COLUMN reward_breakdown.t_agent IS 'seconds that the agent took, without platform queueing';
COMMENT ON COLUMN reward_breakdown.t_base IS 'seconds that speed is measured against';
COMMENT ON COLUMN reward_breakdown.batch_no IS 'the batch that pinned this revision; null: none';
COMMENT ON COLUMN reward_breakdown.baseline IS 'what was taken off the returns: the group''s mean, or the mean of the others; null: no advantage was computed';
COMMENT ON COLUMN reward_breakdown.divisor IS 'what the difference was divided by; 1 unless advantages are normalised';
COMMENT ON COLUMN reward_breakdown.advantage IS 'of the first step; null where the group gives no training signal';
COMMENT ON COLUMN reward_breakdown.per_step IS '[{idx, process, signals, paid, speed, performance, reward, weight, return_to_go, advantage}]; weight 0: does not train';
COMMENT ON COLUMN reward_breakdown.t_base_origin IS 'where t_base comes from: reference (the task''s) | siblings (their median) | itself; null: not paid, or older than this column';
COMMENT ON COLUMN reward_breakdown.process_by_signal IS '{signal: what it added to total, over all steps}; their sum is alpha*process; null: older than this column';
COMMENT ON COLUMN reward_breakdown.sd_log_t IS 'standard deviation of ln(t_agent) over the group''s members that succeeded; null: fewer than two';
COMMENT ON COLUMN reward_breakdown.speed_noise IS 'sd(ln t_agent) of replays of one rollout, which sd_log_t was compared with; null: not measured';
COMMENT ON COLUMN reward_breakdown.silent IS 'why the group gives no training signal, in words; null: it trains, or is not for training';

CREATE VIEW window_state AS
WITH head AS (
  SELECT q.run_id, (c.config -> 'queue' ->> 'window')::bigint AS w, (c.config -> 'queue' ->> 'capacity')::bigint AS n,
         (SELECT min(g.seq) FROM groups g WHERE g.run_id = q.run_id AND NOT g.done AND g.state <> 'taken' AND g.seq IS NOT NULL) AS head
  FROM queue q JOIN runs c ON c.run_id = q.run_id)
SELECT g.run_id, g.seq, g.group_id, g.domain, g.scaffold, g.state, h.head, h.w AS window_size, h.n AS capacity,
       g.seq < h.head + h.w AS inside, g.seq = h.head AS is_head, g.dispatched, now() - g.dispatched AS age,
       (SELECT count(*) FROM rollouts r WHERE r.group_id = g.group_id AND r.state IN ('verified', 'lost')) AS members_done, g.size
FROM groups g JOIN head h ON h.run_id = g.run_id
WHERE g.seq IS NOT NULL AND NOT g.done;
COMMENT ON VIEW window_state IS 'The open queue positions: the head is the oldest position neither taken nor resolved; only ready positions inside the window may be taken.';
COMMENT ON COLUMN window_state.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN window_state.seq IS 'queue position: the order of dispatch; null until dispatched, and always for eval and record';
COMMENT ON COLUMN window_state.group_id IS 'the group; g<group_id> in `penstock dead`';
COMMENT ON COLUMN window_state.domain IS 'what its queue share is counted for: coding, reasoning, …';
COMMENT ON COLUMN window_state.scaffold IS 'the agent that tries it';
COMMENT ON COLUMN window_state.state IS 'accepted → dispatched → ready → taken → trained; or scored (eval, record), filtered, dead';
COMMENT ON COLUMN window_state.head IS 'the oldest position neither taken nor resolved';
COMMENT ON COLUMN window_state.window_size IS 'W: positions of the window';
COMMENT ON COLUMN window_state.capacity IS 'N: positions in flight at most';
COMMENT ON COLUMN window_state.inside IS 'true: in the window';
COMMENT ON COLUMN window_state.is_head IS 'true: everything younger waits for it once the window is full';
COMMENT ON COLUMN window_state.dispatched IS 'when it got its position and its rollouts were queued';
COMMENT ON COLUMN window_state.age IS 'since its dispatch';
COMMENT ON COLUMN window_state.members_done IS 'members that are verified or lost';
COMMENT ON COLUMN window_state.size IS 'G: rollouts in the group';

CREATE VIEW group_summary AS
SELECT g.run_id, g.seq, g.group_id, g.submission, t.name AS task, g.domain, g.difficulty, g.scaffold, g.purpose, g.label, g.pinned_version,
       g.state, g.reason, g.size, m.verified, m.lost, m.retries, m.solved, m.performance, m.spread, b.batch_no,
       extract(epoch FROM g.dispatched - g.created)::float8 AS accepted_s, extract(epoch FROM coalesce(g.ready, g.ended) - g.dispatched)::float8 AS running_s,
       extract(epoch FROM i.taken - g.ready)::float8 AS ready_s, extract(epoch FROM g.ended - i.taken)::float8 AS training_s,
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
      SELECT v.reward AS performance FROM verdicts v WHERE v.rollout_id = r.rollout_id ORDER BY v.revision DESC LIMIT 1) w ON true
   WHERE r.group_id = g.group_id) m ON true;
COMMENT ON VIEW group_summary IS 'One row per group: how its members did, and how long it waited, ran, waited for its batch and was trained.';
COMMENT ON COLUMN group_summary.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN group_summary.seq IS 'queue position: the order of dispatch; null until dispatched, and always for eval and record';
COMMENT ON COLUMN group_summary.group_id IS 'the group; g<group_id> in `penstock dead`';
COMMENT ON COLUMN group_summary.submission IS 'id of the task message that it came from, unique in its run';
COMMENT ON COLUMN group_summary.task IS 'name of the task';
COMMENT ON COLUMN group_summary.domain IS 'what its queue share is counted for: coding, reasoning, …';
COMMENT ON COLUMN group_summary.difficulty IS 'of its task, where stages follow one another; null elsewhere';
COMMENT ON COLUMN group_summary.scaffold IS 'the agent that tries it';
COMMENT ON COLUMN group_summary.purpose IS 'train | eval | record; only train groups get a queue position';
COMMENT ON COLUMN group_summary.label IS 'name that the publisher gave to a set of submissions';
COMMENT ON COLUMN group_summary.pinned_version IS 'the one policy version of an evaluation; null: the version being served';
COMMENT ON COLUMN group_summary.state IS 'accepted → dispatched → ready → taken → trained; or scored (eval, record), filtered, dead';
COMMENT ON COLUMN group_summary.reason IS 'why it was filtered (zero_signal, too_few, run_ended, …) or is dead';
COMMENT ON COLUMN group_summary.size IS 'G: rollouts in the group';
COMMENT ON COLUMN group_summary.verified IS 'members with a verdict';
COMMENT ON COLUMN group_summary.lost IS 'members that used up their attempts, or were cancelled';
COMMENT ON COLUMN group_summary.retries IS 'attempts beyond the first of each member';
COMMENT ON COLUMN group_summary.solved IS 'members with performance 1';
COMMENT ON COLUMN group_summary.performance IS 'mean of its members, 0 to 1';
COMMENT ON COLUMN group_summary.spread IS 'best minus worst performance; 0: the group gives no training signal';
COMMENT ON COLUMN group_summary.batch_no IS 'the batch that took it';
COMMENT ON COLUMN group_summary.accepted_s IS 'seconds from acceptance to dispatch';
COMMENT ON COLUMN group_summary.running_s IS 'seconds from dispatch to ready, or to its end where it never was';
COMMENT ON COLUMN group_summary.ready_s IS 'seconds from ready to its batch';
COMMENT ON COLUMN group_summary.training_s IS 'seconds from being taken to the commit, the wait for the batch to fill included';
COMMENT ON COLUMN group_summary.created IS 'when its submission was accepted';
COMMENT ON COLUMN group_summary.dispatched IS 'when it got its position and its rollouts were queued';
COMMENT ON COLUMN group_summary.ready IS 'when its last member was verified';
COMMENT ON COLUMN group_summary.taken IS 'when a batch took it';
COMMENT ON COLUMN group_summary.ended IS 'when it came to its terminal state';

CREATE VIEW rollout_summary AS
SELECT r.run_id, g.seq, r.group_id, r.rollout_id, r.member, t.name AS task, g.domain, g.scaffold, g.purpose, g.label, g.pinned_version,
       g.state AS group_state, r.state, r.attempt, a.failure_class, coalesce(a.reason, r.reason) AS reason,
       w.performance, w.total AS reward, x.batch_no, x.advantage,
       s.steps, s.action_tokens, s.longest, s.v_lo, s.v_hi, s.ill_formed, s.branches,
       a.agent_s, a.queued_s, a.generation_s, c.verify_s, a.started, a.ended, a.waiting_s
FROM rollouts r
JOIN groups g ON g.group_id = r.group_id
JOIN tasks t ON t.task_id = g.task_id
LEFT JOIN attempts a ON a.rollout_id = r.rollout_id AND a.attempt = r.attempt
LEFT JOIN LATERAL (
  SELECT performance, total FROM rewards WHERE rollout_id = r.rollout_id ORDER BY revision DESC LIMIT 1) w ON true
LEFT JOIN LATERAL (
  SELECT verify_s FROM verdicts WHERE rollout_id = r.rollout_id ORDER BY revision DESC LIMIT 1) c ON true
LEFT JOIN LATERAL (
  SELECT b.batch_no, br.advantage FROM batch_items i JOIN batches b ON b.batch_id = i.batch_id
    JOIN batch_rollouts br ON br.batch_id = i.batch_id AND br.rollout_id = r.rollout_id
   WHERE i.group_id = r.group_id AND NOT i.voided) x ON true
LEFT JOIN LATERAL (
  SELECT count(*) AS steps, sum(full_len - state_len)::bigint AS action_tokens, max(full_len) AS longest, min(v_lo) AS v_lo, max(v_hi) AS v_hi,
         count(*) FILTER (WHERE parse <> 'ok') AS ill_formed,
         count(*) FILTER (WHERE branch_reason IS NOT NULL) AS branches
    FROM steps WHERE run_id = r.run_id AND rollout_id = r.rollout_id AND attempt = r.attempt) s ON true;
COMMENT ON VIEW rollout_summary IS 'One row per rollout: what it tried, how it ended, what it was worth, what it cost. Filter by run_id, and by rollout_id or group_id where you can.';
COMMENT ON COLUMN rollout_summary.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN rollout_summary.seq IS 'queue position: the order of dispatch; null until dispatched, and always for eval and record';
COMMENT ON COLUMN rollout_summary.group_id IS 'the group that it is a member of';
COMMENT ON COLUMN rollout_summary.rollout_id IS 'the rollout: one try of its group''s task';
COMMENT ON COLUMN rollout_summary.member IS '0 to size - 1 in its group';
COMMENT ON COLUMN rollout_summary.task IS 'name of the task';
COMMENT ON COLUMN rollout_summary.domain IS 'what its queue share is counted for: coding, reasoning, …';
COMMENT ON COLUMN rollout_summary.scaffold IS 'the agent that tries it';
COMMENT ON COLUMN rollout_summary.purpose IS 'train | eval | record; only train groups get a queue position';
COMMENT ON COLUMN rollout_summary.label IS 'name that the publisher gave to a set of submissions';
COMMENT ON COLUMN rollout_summary.pinned_version IS 'the one policy version of an evaluation; null: the version being served';
COMMENT ON COLUMN rollout_summary.group_state IS 'state of its group';
COMMENT ON COLUMN rollout_summary.state IS 'state of the rollout';
COMMENT ON COLUMN rollout_summary.attempt IS 'the attempt that counts, 1 and up';
COMMENT ON COLUMN rollout_summary.failure_class IS 'how the attempt that counts ended';
COMMENT ON COLUMN rollout_summary.reason IS 'why, in words';
COMMENT ON COLUMN rollout_summary.performance IS 'newest verdict''s reward, as it was rewarded, 0 to 1';
COMMENT ON COLUMN rollout_summary.reward IS 'newest total: performance + beta*speed + alpha*process';
COMMENT ON COLUMN rollout_summary.batch_no IS 'the batch that took it';
COMMENT ON COLUMN rollout_summary.advantage IS 'of its first step, as the batch pinned it';
COMMENT ON COLUMN rollout_summary.steps IS 'recorded steps of the attempt that counts';
COMMENT ON COLUMN rollout_summary.action_tokens IS 'tokens that the policy made';
COMMENT ON COLUMN rollout_summary.longest IS 'tokens of its longest context';
COMMENT ON COLUMN rollout_summary.v_lo IS 'lowest policy version of its tokens';
COMMENT ON COLUMN rollout_summary.v_hi IS 'highest policy version of its tokens';
COMMENT ON COLUMN rollout_summary.ill_formed IS 'steps whose output could not be parsed';
COMMENT ON COLUMN rollout_summary.branches IS 'steps that are not a plain continuation';
COMMENT ON COLUMN rollout_summary.agent_s IS 'seconds that the agent took, without platform queueing';
COMMENT ON COLUMN rollout_summary.queued_s IS 'seconds in which it waited for gateway, rollout server or sandbox; calls that waited at once count once';
COMMENT ON COLUMN rollout_summary.generation_s IS 'seconds in which at least one completion of it was generated, replayed ones included; null: unknown, or older than this column';
COMMENT ON COLUMN rollout_summary.verify_s IS 'seconds of its newest verification';
COMMENT ON COLUMN rollout_summary.started IS 'when the attempt that counts was leased';
COMMENT ON COLUMN rollout_summary.ended IS 'when its result came in';
COMMENT ON COLUMN rollout_summary.waiting_s IS 'the part of queued_s after its sandbox was there: a call waited, none was generated, no tool ran; null: as generation_s';

CREATE VIEW trained_in AS
SELECT b.run_id, br.group_id, br.rollout_id, br.attempt, b.batch_no, p.part, t.train_step, b.version AS made_version,
       v.parent AS trained_from, br.advantage, t.at
FROM batch_rollouts br
JOIN batches b ON b.batch_id = br.batch_id AND b.state = 'committed'
-- As the trainer splits a batch: its groups in order of seq, part i of U has the ranks n*i/U to n*(i+1)/U - 1.
JOIN LATERAL (
  SELECT (u.parts * (count(*) FILTER (WHERE o.seq <= g.seq)) - 1) / count(*) AS part
  FROM groups g, batch_items i JOIN groups o ON o.group_id = i.group_id,
       (SELECT count(*) AS parts FROM train_steps s WHERE s.batch_id = br.batch_id) u
  WHERE g.group_id = br.group_id AND i.batch_id = br.batch_id AND NOT i.voided
  GROUP BY u.parts) p ON true
LEFT JOIN train_steps t ON t.batch_id = b.batch_id AND t.part = p.part
LEFT JOIN policy_versions v ON v.run_id = b.run_id AND v.version = b.version;
COMMENT ON VIEW trained_in IS 'Which train step used which rollout, with the version that it was trained from and the one that it made.';
COMMENT ON COLUMN trained_in.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN trained_in.group_id IS 'its group';
COMMENT ON COLUMN trained_in.rollout_id IS 'the rollout';
COMMENT ON COLUMN trained_in.attempt IS 'the attempt that is trained';
COMMENT ON COLUMN trained_in.batch_no IS 'the batch that trained it';
COMMENT ON COLUMN trained_in.part IS 'which part of the batch, 0 and up';
COMMENT ON COLUMN trained_in.train_step IS 'the optimizer''s count';
COMMENT ON COLUMN trained_in.made_version IS 'the policy version that the batch published';
COMMENT ON COLUMN trained_in.trained_from IS 'the trainer''s version before the batch';
COMMENT ON COLUMN trained_in.advantage IS '(return - baseline) / divisor at the first step';
COMMENT ON COLUMN trained_in.at IS 'when the batch was committed';

CREATE VIEW tool_use AS
SELECT c.run_id, r.group_id, c.rollout_id, c.attempt, c.idx, c.call, g.domain, g.scaffold, s.v_hi AS version, c.name,
       c.end_s - c.start_s AS seconds, c.exit_code, c.exit_code <> 0 AS failed, c.bytes
FROM tool_calls c
JOIN rollouts r ON r.rollout_id = c.rollout_id
JOIN groups g ON g.group_id = r.group_id
LEFT JOIN steps s ON s.run_id = c.run_id AND s.rollout_id = c.rollout_id AND s.attempt = c.attempt AND s.idx = c.idx;
COMMENT ON VIEW tool_use IS 'One row per tool execution of a white-box scaffold: how long, how it ended, and the policy version that requested it.';
COMMENT ON COLUMN tool_use.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN tool_use.group_id IS 'the group; g<group_id> in `penstock dead`';
COMMENT ON COLUMN tool_use.rollout_id IS 'the rollout';
COMMENT ON COLUMN tool_use.attempt IS 'the attempt';
COMMENT ON COLUMN tool_use.idx IS 'commit index over all branches of the attempt, 0 and up';
COMMENT ON COLUMN tool_use.call IS 'number of the call in its step, 0 and up';
COMMENT ON COLUMN tool_use.domain IS 'what its queue share is counted for: coding, reasoning, …';
COMMENT ON COLUMN tool_use.scaffold IS 'the agent that tries it';
COMMENT ON COLUMN tool_use.version IS 'the policy version that requested it';
COMMENT ON COLUMN tool_use.name IS 'the tool';
COMMENT ON COLUMN tool_use.seconds IS 'how long it took';
COMMENT ON COLUMN tool_use.exit_code IS 'of the tool''s command, where it has one';
COMMENT ON COLUMN tool_use.failed IS 'true: exit code other than 0; null: it has none';
COMMENT ON COLUMN tool_use.bytes IS 'size of its output';

CREATE VIEW token_lineage AS
SELECT s.run_id, s.rollout_id, s.attempt, s.idx, b.batch_no, b.state AS batch_state, b.version AS made_version,
       s.spans[3*i + 1] AS version, s.spans[3*i + 2] AS from_pos, s.spans[3*i + 3] AS to_pos, br.advantage
FROM batch_rollouts br
JOIN batches b ON b.batch_id = br.batch_id AND b.state <> 'voided'
JOIN steps s ON s.run_id = b.run_id AND s.rollout_id = br.rollout_id AND s.attempt = br.attempt,
     generate_series(0, cardinality(s.spans)/3 - 1) i;
COMMENT ON VIEW token_lineage IS 'Which batch used which action tokens, and the policy version that made them.';
COMMENT ON COLUMN token_lineage.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN token_lineage.rollout_id IS 'the rollout';
COMMENT ON COLUMN token_lineage.attempt IS 'the attempt';
COMMENT ON COLUMN token_lineage.idx IS 'commit index over all branches of the attempt, 0 and up';
COMMENT ON COLUMN token_lineage.batch_no IS 'the batch that used the tokens';
COMMENT ON COLUMN token_lineage.batch_state IS 'open, closed or committed';
COMMENT ON COLUMN token_lineage.made_version IS 'the policy version that the batch published';
COMMENT ON COLUMN token_lineage.version IS 'the policy version that made the tokens';
COMMENT ON COLUMN token_lineage.from_pos IS 'first token of the action, 0 and up';
COMMENT ON COLUMN token_lineage.to_pos IS 'behind the last one';
COMMENT ON COLUMN token_lineage.advantage IS '(return - baseline) / divisor at the first step';

CREATE VIEW staleness AS
SELECT l.run_id, l.batch_no,
       coalesce((SELECT max(p.version) FROM policy_versions p WHERE p.run_id = l.run_id AND coalesce(p.batch_no, -1) < l.batch_no), 0) - l.version AS staleness,
       sum(l.to_pos - l.from_pos)::bigint AS tokens
FROM token_lineage l GROUP BY l.run_id, l.batch_no, l.version;
COMMENT ON VIEW staleness IS 'Action tokens per batch by staleness: the trainer''s version before the batch minus the version that made the token.';
COMMENT ON COLUMN staleness.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN staleness.batch_no IS 'the batch';
COMMENT ON COLUMN staleness.staleness IS 'the trainer''s version before the batch minus the version that made the tokens';
COMMENT ON COLUMN staleness.tokens IS 'action tokens of that staleness';

CREATE VIEW token_ratios AS
SELECT t.run_id, t.rollout_id, t.attempt, t.idx, b.batch_no, x.train_step, (s.state_len + u.n - 1)::integer AS pos, u.token,
       u.behavior AS behavior_logprob, u.trainer AS trainer_logprob, q.ratio,
       q.ratio < (r.config #>> '{trainer,ratio_min}')::float8 OR q.ratio > (r.config #>> '{trainer,ratio_max}')::float8 AS clipped
FROM trained_steps t
JOIN batches b ON b.batch_id = t.batch_id AND b.state = 'committed'
JOIN runs r ON r.run_id = t.run_id
JOIN steps s ON s.run_id = t.run_id AND s.rollout_id = t.rollout_id AND s.attempt = t.attempt AND s.idx = t.idx
LEFT JOIN train_steps x ON x.run_id = t.run_id AND x.batch_id = t.batch_id AND x.part = t.part
CROSS JOIN LATERAL unnest(i4(s.action), f4(s.logprobs), f4(t.logprobs)) WITH ORDINALITY u(token, behavior, trainer, n)
CROSS JOIN LATERAL (SELECT exp(least(greatest(u.trainer::float8 - u.behavior::float8, -80), 80)) AS ratio) q
WHERE u.trainer <> 'NaN';
COMMENT ON VIEW token_ratios IS 'One row per token that a train step computed its loss of, also where the step was then skipped (train_curve.applied): its logprob when it was sampled and in that train step, and their ratio. Of committed batches; filter by run_id and rollout_id.';
COMMENT ON COLUMN token_ratios.run_id IS 'the run';
COMMENT ON COLUMN token_ratios.rollout_id IS 'the rollout';
COMMENT ON COLUMN token_ratios.attempt IS 'the attempt';
COMMENT ON COLUMN token_ratios.idx IS 'the step';
COMMENT ON COLUMN token_ratios.batch_no IS 'number of the batch that trained it';
COMMENT ON COLUMN token_ratios.train_step IS 'number of its train step in the run';
COMMENT ON COLUMN token_ratios.pos IS 'position in the step''s full ids; its action begins at state_len';
COMMENT ON COLUMN token_ratios.token IS 'token id';
COMMENT ON COLUMN token_ratios.behavior_logprob IS 'logprob that the rollout server gave it, after temperature';
COMMENT ON COLUMN token_ratios.trainer_logprob IS 'logprob that the trainer gave it before its train step''s update, after temperature';
COMMENT ON COLUMN token_ratios.ratio IS 'importance ratio: exp(trainer logprob - behavior logprob), whatever the anchor of the loss is';
COMMENT ON COLUMN token_ratios.clipped IS 'the ratio lies outside of trainer.ratio_min and ratio_max; what that does depends on trainer.loss (ops/guides/losses.md)';

CREATE VIEW train_curve AS
SELECT t.run_id, t.train_step, b.batch_no, t.part, b.version AS made_version, t.at,
       (t.metrics ->> 'applied')::boolean AS applied, t.metrics ->> 'skip_reason' AS skip_reason,
       (t.metrics ->> 'loss')::float8 AS loss, (t.metrics ->> 'gradient_norm')::float8 AS gradient_norm, (t.metrics ->> 'lr')::float8 AS lr,
       (t.metrics ->> 'entropy')::float8 AS entropy, (t.metrics ->> 'kl_k3')::float8 AS kl_k3,
       (t.metrics ->> 'clip_fraction')::float8 AS clip_fraction, (t.metrics ->> 'ess')::float8 AS ess,
       (t.metrics ->> 'mean_abs_dlogprob')::float8 AS mean_abs_dlogprob, (t.metrics ->> 'performance')::float8 AS performance,
       (t.metrics ->> 'reward')::float8 AS reward, (t.metrics ->> 'groups')::int AS groups, (t.metrics ->> 'rollouts')::int AS rollouts,
       (t.metrics ->> 'action_tokens')::bigint AS action_tokens, (t.metrics ->> 'tokens_naive')::bigint AS tokens_naive,
       (t.metrics ->> 'tokens_merged')::bigint AS tokens_merged, (t.metrics ->> 'merge_ratio')::float8 AS merge_ratio,
       (SELECT sum(age::int * n::float8) / nullif(sum(n::float8), 0) FROM jsonb_each_text(t.metrics -> 'staleness') AS s(age, n)) AS staleness,
       (t.metrics ->> 'wall_s')::float8 AS wall_s
FROM train_steps t
JOIN batches b ON b.batch_id = t.batch_id AND b.state = 'committed';
COMMENT ON VIEW train_curve IS 'One row per train step that counts, its scalars as columns; train_steps.metrics has the rest.';
COMMENT ON COLUMN train_curve.run_id IS 'the run; always filter by it';
COMMENT ON COLUMN train_curve.train_step IS '1 and up per run: the optimizer''s count';
COMMENT ON COLUMN train_curve.batch_no IS 'the batch';
COMMENT ON COLUMN train_curve.part IS '0 to U - 1 in its batch';
COMMENT ON COLUMN train_curve.made_version IS 'the policy version that the batch published';
COMMENT ON COLUMN train_curve.at IS 'when its batch was committed';
COMMENT ON COLUMN train_curve.applied IS 'false: the step was skipped';
COMMENT ON COLUMN train_curve.skip_reason IS 'why it was skipped';
COMMENT ON COLUMN train_curve.loss IS 'CISPO loss';
COMMENT ON COLUMN train_curve.gradient_norm IS 'before clipping';
COMMENT ON COLUMN train_curve.lr IS 'learning rate';
COMMENT ON COLUMN train_curve.entropy IS 'mean entropy of the policy over action tokens, nats';
COMMENT ON COLUMN train_curve.kl_k3 IS 'mean over action tokens of r - 1 - log r: how far the policy is from the one that sampled, nats';
COMMENT ON COLUMN train_curve.clip_fraction IS 'share of action tokens whose importance ratio was clipped';
COMMENT ON COLUMN train_curve.ess IS 'effective sample size over action tokens, share';
COMMENT ON COLUMN train_curve.mean_abs_dlogprob IS 'mean of |trainer logprob - behavior logprob|';
COMMENT ON COLUMN train_curve.performance IS 'mean of its rollouts';
COMMENT ON COLUMN train_curve.reward IS 'mean total of its rollouts';
COMMENT ON COLUMN train_curve.groups IS 'groups that it trained on';
COMMENT ON COLUMN train_curve.rollouts IS 'rollouts that it trained on';
COMMENT ON COLUMN train_curve.action_tokens IS 'tokens in the loss';
COMMENT ON COLUMN train_curve.tokens_naive IS 'tokens that would go through the model without merging';
COMMENT ON COLUMN train_curve.tokens_merged IS 'tokens that went through the model';
COMMENT ON COLUMN train_curve.merge_ratio IS 'tokens_naive / tokens_merged';
COMMENT ON COLUMN train_curve.staleness IS 'mean staleness of its action tokens, versions';
COMMENT ON COLUMN train_curve.wall_s IS 'seconds that it took';
