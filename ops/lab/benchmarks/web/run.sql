-- Rows of a long run, as the product leaves them. Words with a dollar are numbers, but for that of the model; a line of --; ends a statement.
INSERT INTO tasks (task_id, run_id, sha, name, domain, settings, body)
SELECT n, $run, int8send(n), 'task-' || n, (ARRAY['agent', 'coding', 'general', 'reasoning'])[1 + n % 4], '{}', '{"files": {}}' FROM generate_series(1, 1000) n
--;
INSERT INTO submissions (run_id, submission, status) SELECT $run, 's' || n, 'accepted' FROM generate_series(1, $groups) n
--;
INSERT INTO groups (group_id, run_id, submission, task_id, domain, scaffold, size, seq, state, created, dispatched, ready, ended)
SELECT n, $run, 's' || n, 1 + n % 1000, (ARRAY['agent', 'coding', 'general', 'reasoning'])[1 + n % 4], CASE WHEN n % 5 = 0 THEN 'mini-swe-agent' ELSE 'shell' END, $members, n - 1,
       CASE WHEN n <= $trained THEN 'trained' WHEN n % 2 = 0 THEN 'ready' ELSE 'dispatched' END, now() - make_interval(secs => ($groups - n) * 0.9), now() - make_interval(secs => ($groups - n) * 0.9),
       CASE WHEN n <= $trained OR n % 2 = 0 THEN now() - make_interval(secs => ($groups - n) * 0.9) + interval '40 s' END,
       CASE WHEN n <= $trained THEN now() - make_interval(secs => ($groups - n) * 0.9) + interval '60 s' END FROM generate_series(1, $groups) n
--;
INSERT INTO rollouts (rollout_id, run_id, group_id, member, seed, state, lease_epoch, failure_class, created, changed)
SELECT n, $run, g, (n - 1) % $members, n, CASE WHEN g > $trained AND g % 2 = 1 THEN 'running' ELSE 'verified' END, 2,
       CASE WHEN g > $trained AND g % 2 = 1 THEN NULL WHEN n % 50 = 0 THEN 'timeout' ELSE 'completed' END,
       now() - make_interval(secs => ($groups - g) * 0.9), now() - make_interval(secs => ($groups - g) * 0.9) + interval '40 s'
  FROM (SELECT n, 1 + (n - 1) / $members AS g FROM generate_series(1, $groups * $members) n) r
--;
INSERT INTO attempts (run_id, rollout_id, attempt, epoch, runner, scaffold, started, ended, failure_class, steps, last_idx, agent_s, queued_s, answer)
SELECT $run, rollout_id, 1, 1, 'runner', 'shell', created + interval '2 s', created + interval '30 s', failure_class, $per, $per - 1, 20.0, 2.0,
       'done' FROM rollouts WHERE run_id = $run
--;
INSERT INTO verdicts (run_id, rollout_id, revision, attempt, epoch, reward, tests, exit_code, log, verify_s, at)
SELECT $run, n, 1, 1, 2, (('x' || substr(md5('won' || n), 1, 6))::bit(24)::int / 16777216.0 < 0.3 + 0.5 * n / ($groups * $members))::int, '[{"name": "wool.dat", "passed": false, "message": "expected wolf wool rose"}]', 0,
       'checked ' || n, 0.5, now() - make_interval(secs => ($groups - (n / $members)) * 0.9) + interval '50 s' FROM generate_series(1, $groups * $members) n
--;
INSERT INTO rewards (run_id, rollout_id, revision, verdict_revision, attempt, performance, speed, process, alpha, beta, total, baseline, divisor,
                     advantage, per_step, at)
SELECT $run, n, 1, 1, 1, won, 0.5, 0, 0.05, 0.1, won + 0.05, 0.5, 1, won - 0.5,
       (SELECT jsonb_agg(jsonb_build_object('idx', m, 'weight', 1, 'reward', won, 'speed', 0.5, 'process', 0, 'performance', won,
                                            'advantage', won - 0.5, 'return_to_go', won)) FROM generate_series(0, $per - 1) m),
       now() - make_interval(secs => ($groups - (n / $members)) * 0.9) + interval '50 s'
  FROM (SELECT n, (('x' || substr(md5('won' || n), 1, 6))::bit(24)::int / 16777216.0 < 0.3 + 0.5 * n / ($groups * $members))::int AS won FROM generate_series(1, $groups * $members) n) w
--;
INSERT INTO sampling (run_id, sha, params) VALUES ($run, 'x', '{"temperature": 1.0, "max_new_tokens": 64}')
--;
INSERT INTO steps (run_id, rollout_id, attempt, idx, epoch, kind, parent_idx, root_idx, keep_len, state_len, full_len, v_lo, v_hi, spans,
                   sampling_id, agent, finish, parse, t_queue, t_first, t_gen, t_gap, at, chain_sha, row_sha, delta, action, logprobs)
SELECT $run, 1 + n / $per, 1, n % $per, 1, CASE WHEN n % $per = 0 THEN 'root' ELSE 'continues' END, nullif(n % $per, 0) - 1, 0,
       $turn * (n % $per), $turn * (n % $per) + $delta, $turn * (n % $per + 1), v, v, ARRAY[v, 0, $action], (SELECT max(sampling_id) FROM sampling),
       'main', 'stop', 'ok', 0.01, 0.05, 0.6, 0.2, now() - make_interval(secs => ($groups - n / $per / $members) * 0.9),
       decode(repeat('ab', 32), 'hex'), decode(repeat('ab', 32), 'hex'), decode(repeat('1a000000', $delta), 'hex'), decode(repeat('2a000000', $action), 'hex'), decode(repeat('cdcccc3d', $action), 'hex')
  FROM (SELECT n, (n / ($per * $members * $batch))::int AS v FROM generate_series(0, $groups * $members * $per - 1) n) s
--;
INSERT INTO messages (run_id, rollout_id, attempt, idx, appended, reply)
SELECT $run, 1 + n / $per, 1, n % $per,
       jsonb_build_array(jsonb_build_object('role', CASE WHEN n % $per = 0 THEN 'user' ELSE 'tool' END, 'content', 'rename lake-' || n || '.txt to wool-' || md5((n + 7)::text) || '.dat, then count its words')),
       jsonb_build_object('role', 'assistant', 'content', CASE WHEN n % $per = $per - 1 THEN 'it is done' ELSE '' END, 'reasoning', 'move the file ' || n,
         'tool_calls', CASE WHEN n % $per = $per - 1 THEN '[]'::jsonb ELSE
           jsonb_build_array(jsonb_build_object('name', CASE WHEN n % 3 = 0 THEN 'edit' ELSE 'bash' END, 'arguments', jsonb_build_object('command', 'mv lake-' || n || '.txt wool.dat'))) END)
  FROM generate_series(0, $groups * $members * $per - 1) n
--;
INSERT INTO tool_calls (run_id, rollout_id, attempt, idx, call, name, start_s, end_s, exit_code, bytes)
SELECT $run, 1 + n / $per, 1, n % $per, 0, CASE WHEN n % 3 = 0 THEN 'edit' ELSE 'bash' END, n % $per, n % $per + 0.2, (n % 11 = 0)::int, 30
  FROM generate_series(0, $groups * $members * $per - 1) n WHERE n % $per < $per - 1
--;
INSERT INTO batches (batch_id, run_id, batch_no, state, size, digest, version, opened, closed, committed, groups_so_far)
SELECT n, $run, n - 1, 'committed', $batch, decode('00', 'hex'), n, at, at + interval '1 s', at + interval '9 s', n * $batch
  FROM (SELECT n, now() - make_interval(secs => ($groups - n * $batch) * 0.9) AS at FROM generate_series(1, $trained / $batch) n) b
--;
INSERT INTO batch_items (batch_id, pos, group_id) SELECT 1 + (n - 1) / $batch, (n - 1) % $batch, n FROM generate_series(1, $trained) n
--;
INSERT INTO batch_rollouts (batch_id, group_id, rollout_id, attempt, reward_revision, baseline, divisor, advantage)
SELECT 1 + (n - 1) / ($batch * $members), 1 + (n - 1) / $members, n, 1, 1, 0.5, 1, w.performance - 0.5
  FROM generate_series(1, $trained * $members) n JOIN rewards w ON w.rollout_id = n
--;
INSERT INTO policy_versions (run_id, version, parent, batch_no, path, manifest_sha)
SELECT $run, n, nullif(n - 1, -1), nullif(n - 1, -1), '$model', '00' FROM generate_series(0, $trained / $batch) n
--;
INSERT INTO train_steps (run_id, train_step, batch_id, part, metrics, at)
SELECT $run, n, n, 0, jsonb_build_object('lr', 2e-4, 'loss', -0.02 / n, 'entropy', 1.0 / sqrt(n), 'kl_k1', 1e-4, 'kl_k3', 1e-4 * n, 'reward', 0.3 + 0.0003 * n,
         'performance', 0.3 + 0.0003 * n, 'merge_ratio', 3.3, 'clip_fraction', 0.01, 'gradient_norm', 0.2, 'tokens_naive', 24000, 'tokens_merged', 7200,
         'action_tokens', 5400, 'samples', 256, 'groups', $batch, 'rollouts', $batch * $members, 'applied', true, 'wall_s', 8.0, 'cpu_s', 7.0,
         'staleness', '{"0": 2400, "1": 3000}'::jsonb, 'domains', jsonb_build_object('agent', '{"reward": 0.5, "rollouts": 16, "performance": 0.5}'::jsonb,
         'coding', '{"reward": 0.4, "rollouts": 16, "performance": 0.4}'::jsonb), 'seconds', '{"forward": 3.0, "backward": 4.0, "optimizer": 0.5}'::jsonb),
       now() - make_interval(secs => ($groups - n * $batch) * 0.9) FROM generate_series(1, $trained / $batch) n
--;
INSERT INTO transitions (run_id, kind, entity_id, seq, from_state, to_state, at)
SELECT $run, 'group', n, n - 1, 'accepted', 'dispatched', now() - make_interval(secs => ($groups - n) * 0.9) FROM generate_series(1, $groups) n
--;
INSERT INTO transitions (run_id, kind, entity_id, from_state, to_state, epoch, at)
SELECT $run, 'rollout', n, 'verifying', 'verified', 2, now() - make_interval(secs => ($groups - (n / $members)) * 0.9) FROM generate_series(1, $groups * $members) n
--;
UPDATE queue SET next_seq = $groups, floor_seq = $trained WHERE run_id = $run
--;
DELETE FROM steps WHERE run_id = $run AND rollout_id = $long
--;
DELETE FROM messages WHERE run_id = $run AND rollout_id = $long
--;
DELETE FROM tool_calls WHERE run_id = $run AND rollout_id = $long
--;
UPDATE attempts SET steps = $long_steps, last_idx = $long_steps - 1 WHERE rollout_id = $long
--;
INSERT INTO steps (run_id, rollout_id, attempt, idx, epoch, kind, parent_idx, root_idx, keep_len, state_len, full_len, v_lo, v_hi, spans,
                   sampling_id, agent, finish, parse, t_queue, t_first, t_gen, t_gap, chain_sha, row_sha, delta, action, logprobs)
SELECT $run, $long, 1, n, 1, CASE WHEN n = 0 THEN 'root' ELSE 'continues' END, nullif(n, 0) - 1, 0, n * ($long_delta + $long_action),
       n * ($long_delta + $long_action) + $long_delta, (n + 1) * ($long_delta + $long_action), 1, 1, ARRAY[1, 0, $long_action],
       (SELECT max(sampling_id) FROM sampling), 'main', 'stop', 'ok', 0.01, 0.05, 2.6, 0.2, decode(repeat('ab', 32), 'hex'), decode(repeat('ab', 32), 'hex'),
       decode(repeat('1a000000', $long_delta), 'hex'), decode(repeat('2a000000', $long_action), 'hex'), decode(repeat('cdcccc3d', $long_action), 'hex')
  FROM generate_series(0, $long_steps - 1) n
--;
INSERT INTO messages (run_id, rollout_id, attempt, idx, appended, reply)
SELECT $run, $long, 1, n, jsonb_build_array(jsonb_build_object('role', CASE WHEN n = 0 THEN 'user' ELSE 'tool' END,
         'content', repeat('line ' || n || ' of a long log of a build that fails somewhere' || chr(10), 140))),
       jsonb_build_object('role', 'assistant', 'content', '', 'reasoning', repeat('look at the next part, ', 30),
         'tool_calls', jsonb_build_array(jsonb_build_object('name', 'bash', 'arguments', jsonb_build_object('command', 'sed -n ' || n || 'p build.log'))))
  FROM generate_series(0, $long_steps - 1) n
