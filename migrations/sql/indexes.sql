-- Indexes besides those of keys, in the order of tables.sql.

CREATE INDEX groups_accepted ON groups (run_id, domain, group_id) WHERE state = 'accepted';
CREATE INDEX groups_dead ON groups (run_id, group_id) WHERE state = 'dead';
CREATE INDEX groups_eval ON groups (run_id, coalesce(label, ''), pinned_version) INCLUDE (label, size, done, group_id, ended) WHERE purpose = 'eval';
CREATE INDEX groups_of_kind ON groups (run_id, difficulty, domain, group_id) WHERE state = 'accepted' AND difficulty IS NOT NULL;
CREATE INDEX groups_open ON groups (run_id, seq) INCLUDE (state, group_id) WHERE NOT done;
CREATE INDEX groups_other ON groups (run_id, group_id) WHERE state = 'accepted' AND purpose <> 'train';
CREATE INDEX rollouts_unfinished ON rollouts (run_id, state) WHERE state NOT IN ('verified', 'lost');
CREATE INDEX attempts_ended ON attempts (run_id, ended) WHERE ended IS NOT NULL;
CREATE INDEX resumes_at ON resumes (run_id, at);
-- By the hash of the path: an index row holds 2,704 bytes at most, and an agent may name longer paths. `decode` with doubled backslashes gives
-- the bytes of a text; a cast to bytea would read the backslashes as escapes.
CREATE UNIQUE INDEX artifacts_once ON artifacts (rollout_id, attempt, step, sha256(decode(replace(path, '\', '\\'), 'escape')));
CREATE INDEX sessions_rollout_id_attempt ON sessions (rollout_id, attempt);
CREATE INDEX steps_branched ON steps (run_id, rollout_id) WHERE branch_reason IS NOT NULL;
CREATE UNIQUE INDEX batches_live ON batches (run_id, batch_no) WHERE state <> 'voided';
CREATE INDEX batches_state ON batches (run_id, state) INCLUDE (size);
CREATE UNIQUE INDEX batch_items_once ON batch_items (group_id) WHERE NOT voided;
CREATE INDEX batch_rollouts_rollout_id ON batch_rollouts (rollout_id);
CREATE INDEX speed_noise_newest ON speed_noise (run_id, scaffold, group_id);
CREATE UNIQUE INDEX dead_letters_once ON dead_letters (coalesce(run_id, 0), left(subject, 256), left(coalesce(msg_id, ''), 256), sha256(body));
CREATE INDEX transitions_kind_entity_id ON transitions (kind, entity_id);
CREATE INDEX actions_run_id_action_id ON actions (run_id, action_id);
