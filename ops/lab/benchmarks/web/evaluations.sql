-- Held-out tasks on every $every-th version, as `penstock eval --greedy` leaves them: no queue position, a pinned version, a rollout per task, a reward
-- without an advantage. Words with a dollar are numbers; a line of --; ends a statement. e counts the evaluations, t the tasks of the suite.
INSERT INTO submissions (run_id, submission, status)
SELECT $run, 'eval:heldout:' || $every * (n / $suite) || ':1g:' || md5('task-' || 1 + n % $suite), 'accepted' FROM generate_series(0, $evaluated - 1) n
--;
INSERT INTO groups (group_id, run_id, submission, task_id, domain, purpose, label, scaffold, size, pinned_version, sampling, state, reason, created, dispatched, ready, ended)
SELECT $groups + 1 + e * $suite + t, $run, 'eval:heldout:' || $every * e || ':1g:' || md5('task-' || 1 + t), 1 + t, (ARRAY['agent', 'coding', 'general', 'reasoning'])[1 + (1 + t) % 4],
       'eval', 'heldout', 'shell', 1, $every * e, '{"temperature": 0.0}', CASE WHEN t % 61 = 60 THEN 'filtered' ELSE 'scored' END, CASE WHEN t % 61 = 60 THEN 'too_few' END,
       at, at + interval '1 s', CASE WHEN t % 61 < 60 THEN at + interval '40 s' END, at + interval '40 s'
  FROM (SELECT n / $suite AS e, n % $suite AS t, now() - make_interval(secs => ($groups - $every * (n / $suite) * $batch) * 0.9) AS at
          FROM generate_series(0, $evaluated - 1) n) s
--;
INSERT INTO rollouts (rollout_id, run_id, group_id, member, seed, state, lease_epoch, failure_class, created, changed)
SELECT group_id - $groups + $groups * $members, run_id, group_id, 0, group_id, CASE WHEN state = 'scored' THEN 'verified' ELSE 'lost' END, 2,
       CASE WHEN state = 'scored' THEN 'completed' ELSE 'infra_failure' END, created, ended FROM groups WHERE run_id = $run AND purpose = 'eval'
--;
INSERT INTO attempts (run_id, rollout_id, attempt, epoch, runner, scaffold, started, ended, failure_class, steps, last_idx, agent_s, queued_s, answer)
SELECT r.run_id, rollout_id, 1, 1, 'runner', 'shell', r.created + interval '2 s', r.created + interval '30 s', failure_class, $per, $per - 1, 20.0, 2.0, 'done'
  FROM rollouts r JOIN groups g USING (group_id) WHERE r.run_id = $run AND g.purpose = 'eval'
--;
INSERT INTO verdicts (run_id, rollout_id, revision, attempt, epoch, reward, tests, exit_code, log, verify_s)
SELECT r.run_id, rollout_id, 1, 1, 2, (('x' || substr(md5('held' || rollout_id), 1, 6))::bit(24)::int / 16777216.0 < 0.2 + 0.5 * g.pinned_version * $batch / $groups)::int,
       '[{"name": "wool.dat", "passed": false, "message": "expected wolf wool rose"}]', 0, 'checked ' || rollout_id, 0.5
  FROM rollouts r JOIN groups g USING (group_id) WHERE r.run_id = $run AND g.purpose = 'eval' AND g.state = 'scored'
--;
INSERT INTO rewards (run_id, rollout_id, revision, verdict_revision, attempt, performance, speed, process, alpha, beta, total, per_step, at)
SELECT v.run_id, rollout_id, 1, 1, 1, v.reward, 0.5, 0, 0.05, 0.1, v.reward + 0.05,
       (SELECT jsonb_agg(jsonb_build_object('idx', m, 'weight', 1, 'reward', v.reward, 'speed', 0.5, 'process', 0, 'performance', v.reward,
                                            'advantage', NULL, 'return_to_go', NULL)) FROM generate_series(0, $per - 1) m), g.ended
  FROM verdicts v JOIN rollouts r USING (rollout_id) JOIN groups g USING (group_id) WHERE v.run_id = $run AND g.purpose = 'eval'
--;
INSERT INTO sampling (run_id, sha, params) VALUES ($run, 'greedy', '{"temperature": 0.0, "max_new_tokens": 64}')
--;
INSERT INTO steps (run_id, rollout_id, attempt, idx, epoch, kind, parent_idx, root_idx, keep_len, state_len, full_len, v_lo, v_hi, spans,
                   sampling_id, agent, finish, parse, t_queue, t_first, t_gen, t_gap, at, chain_sha, row_sha, delta, action, logprobs)
SELECT r.run_id, rollout_id, 1, i, 1, CASE WHEN i = 0 THEN 'root' ELSE 'continues' END, nullif(i, 0) - 1, 0, $turn * i, $turn * i + $delta, $turn * (i + 1),
       g.pinned_version, g.pinned_version, ARRAY[g.pinned_version, 0, $action], (SELECT max(sampling_id) FROM sampling),
       'main', 'stop', 'ok', 0.01, 0.05, 0.6, 0.2, r.created + make_interval(secs => 5 * i),
       decode(repeat('ab', 32), 'hex'), decode(repeat('ab', 32), 'hex'), decode(repeat('1a000000', $delta), 'hex'), decode(repeat('2a000000', $action), 'hex'), decode(repeat('cdcccc3d', $action), 'hex')
  FROM rollouts r JOIN groups g USING (group_id), generate_series(0, $per - 1) i WHERE r.run_id = $run AND g.purpose = 'eval'
--;
INSERT INTO messages (run_id, rollout_id, attempt, idx, appended, reply)
SELECT r.run_id, rollout_id, 1, i,
       jsonb_build_array(jsonb_build_object('role', CASE WHEN i = 0 THEN 'user' ELSE 'tool' END, 'content', 'rename held-' || g.task_id || '.txt to wool.dat, then count its words')),
       jsonb_build_object('role', 'assistant', 'content', CASE WHEN i = $per - 1 THEN 'it is done' ELSE '' END, 'reasoning', 'move the file', 'tool_calls',
         CASE WHEN i = $per - 1 THEN '[]'::jsonb ELSE jsonb_build_array(jsonb_build_object('name', 'bash', 'arguments', jsonb_build_object('command', 'mv held-' || g.task_id || '.txt wool.dat'))) END)
  FROM rollouts r JOIN groups g USING (group_id), generate_series(0, $per - 1) i WHERE r.run_id = $run AND g.purpose = 'eval'
--;
INSERT INTO tool_calls (run_id, rollout_id, attempt, idx, call, name, start_s, end_s, exit_code, bytes)
SELECT r.run_id, rollout_id, 1, i, 0, 'bash', i, i + 0.2, 0, 30
  FROM rollouts r JOIN groups g USING (group_id), generate_series(0, $per - 2) i WHERE r.run_id = $run AND g.purpose = 'eval'
--;
INSERT INTO transitions (run_id, kind, entity_id, from_state, to_state, at)
SELECT run_id, 'group', group_id, 'accepted', 'dispatched', dispatched FROM groups WHERE run_id = $run AND purpose = 'eval'
UNION ALL SELECT run_id, 'group', group_id, 'dispatched', state, ended FROM groups WHERE run_id = $run AND purpose = 'eval'
