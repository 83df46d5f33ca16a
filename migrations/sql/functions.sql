-- Functions: token ids and logprobs as arrays, steps folded from the tree of deltas, partitions of a run, the trigger of append-only tables.

CREATE FUNCTION i4(b bytea) RETURNS int4[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  -- b || '' with OFFSET 0 detoasts once; without it the function is quadratic.
  SELECT array(
    SELECT get_byte(c, 4*i) | (get_byte(c, 4*i+1) << 8) | (get_byte(c, 4*i+2) << 16) | (get_byte(c, 4*i+3) << 24)
    FROM (SELECT b || ''::bytea AS c OFFSET 0) t, generate_series(0, length(b)/4 - 1) i)
$$;
COMMENT ON FUNCTION i4(bytea) IS 'Little-endian int32 bytes as an array: token ids.';

CREATE FUNCTION f4(b bytea) RETURNS real[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT array(
    SELECT (CASE WHEN e = 255 AND m = 0 THEN s * 'Infinity'::float8
                 WHEN e = 255 THEN 'NaN'::float8
                 WHEN e = 0 THEN s * m * 2.0::float8 ^ (-149)
                 ELSE s * (8388608 + m) * 2.0::float8 ^ (e - 150) END)::real
    FROM (SELECT i, (w >> 23) & 255 AS e, w & 8388607 AS m, CASE WHEN w < 0 THEN -1.0::float8 ELSE 1.0::float8 END AS s
          FROM (SELECT i, get_byte(c, 4*i) | (get_byte(c, 4*i+1) << 8) | (get_byte(c, 4*i+2) << 16) | (get_byte(c, 4*i+3) << 24) AS w
                FROM (SELECT b || ''::bytea AS c OFFSET 0) t, generate_series(0, length(b)/4 - 1) i) words) parts
    ORDER BY i)
$$;
COMMENT ON FUNCTION f4(bytea) IS 'Little-endian float32 bytes as an array: logprobs, exact to the bit.';

CREATE FUNCTION step_full(run int, rollout bigint, att int, step int) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS $$
  WITH RECURSIVE w(idx, parent_idx, prompt_sha, keep_len, want, d) AS (
    SELECT idx, parent_idx, prompt_sha, keep_len, full_len, 0 FROM steps
     WHERE run_id = run AND rollout_id = rollout AND attempt = att AND idx = step
    UNION ALL
    SELECT p.idx, p.parent_idx, p.prompt_sha, p.keep_len, least(w.want, w.keep_len), w.d + 1
      FROM w JOIN steps p ON p.run_id = run AND p.rollout_id = rollout AND p.attempt = att AND p.idx = w.parent_idx
     WHERE w.keep_len > 0),
  parts(d, b) AS (
    SELECT d, substr(s.delta || s.action, 1, 4 * (w.want - w.keep_len))
      FROM w JOIN steps s ON s.run_id = run AND s.rollout_id = rollout AND s.attempt = att AND s.idx = w.idx
     WHERE w.want > w.keep_len
    UNION ALL
    SELECT w.d + 1, substr(p.ids, 1, 4 * least(w.want, w.keep_len))
      FROM w JOIN prompts p ON p.run_id = run AND p.sha = w.prompt_sha WHERE w.keep_len > 0)
  SELECT coalesce(string_agg(b, ''::bytea ORDER BY d DESC), '') FROM parts
$$;
COMMENT ON FUNCTION step_full(int, bigint, int, int) IS 'State and action of one step as bytes, folded from the tree of deltas.';

CREATE FUNCTION step_ids(run int, rollout bigint, att int, step int) RETURNS int4[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT i4(step_full(run, rollout, att, step))
$$;
COMMENT ON FUNCTION step_ids(int, bigint, int, int) IS 'State and action of one step as an array of token ids; the last full_len - state_len are the action.';

CREATE FUNCTION step_logprobs(run int, rollout bigint, att int, step int) RETURNS real[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT f4(logprobs) FROM steps WHERE run_id = run AND rollout_id = rollout AND attempt = att AND idx = step
$$;
COMMENT ON FUNCTION step_logprobs(int, bigint, int, int) IS 'Behavior logprobs of one step''s action.';

CREATE FUNCTION chain_of(above bytea, keep_len int, delta bytea, action bytea) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT sha256(above || substr(n, 4, 1) || substr(n, 3, 1) || substr(n, 2, 1) || substr(n, 1, 1) || delta || action)
  FROM (SELECT int4send(keep_len) AS n) big_endian
$$;
COMMENT ON FUNCTION chain_of(bytea, int, bytea, bytea) IS 'The chain_sha that a step must have; above = the parent''s chain_sha, or the prompt''s sha256, or 32 zero bytes.';

CREATE FUNCTION broken_steps(run int, rollout bigint, att int) RETURNS TABLE (idx int) LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT s.idx
    FROM steps s
    LEFT JOIN steps p ON p.run_id = run AND p.rollout_id = rollout AND p.attempt = att AND p.idx = s.parent_idx
    LEFT JOIN prompts q ON q.run_id = run AND q.sha = s.prompt_sha
   WHERE s.run_id = run AND s.rollout_id = rollout AND s.attempt = att
     AND (s.keep_len > coalesce(p.full_len, q.n, 0)
          OR s.chain_sha IS DISTINCT FROM chain_of(
               CASE WHEN s.parent_idx IS NOT NULL THEN p.chain_sha WHEN s.prompt_sha IS NOT NULL THEN q.sha
                    ELSE decode(repeat('00', 32), 'hex') END, s.keep_len, s.delta, s.action))
$$;
COMMENT ON FUNCTION broken_steps(int, bigint, int) IS 'Steps of an attempt whose parent or prompt is missing or too short, or whose chain_sha does not follow from it. None in a complete attempt.';

CREATE FUNCTION count_event(run int, counter text, amount bigint DEFAULT 1) RETURNS void LANGUAGE sql AS $$
  INSERT INTO counters(run_id, name, value) VALUES (run, counter, amount)
  ON CONFLICT (run_id, name) DO UPDATE SET value = counters.value + excluded.value
$$;
COMMENT ON FUNCTION count_event(int, text, bigint) IS 'Adds to a counter of the run.';

CREATE FUNCTION open_partition_of(parent text, run int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE own text := format('%s_%s', parent, run);
BEGIN
  EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', own, parent);
  EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES IN (%s)', parent, own, run);
  EXECUTE format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON %I EXECUTE FUNCTION refuse_change()', own);
  EXECUTE format('GRANT SELECT ON %I TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer', own);
END
$$;
COMMENT ON FUNCTION open_partition_of(text, int) IS 'Makes the partition of a new run in one of the tables that hold its trajectories. Retention is DETACH and DROP of a partition.';

CREATE FUNCTION open_partition(run int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM open_partition_of(parent, run) FROM unnest(ARRAY['steps', 'step_routes', 'trained_steps', 'messages', 'prompts']) parent;
  EXECUTE format('ALTER TABLE steps_%s ALTER delta SET STORAGE EXTERNAL, ALTER action SET STORAGE EXTERNAL, ALTER logprobs SET STORAGE EXTERNAL', run);
  EXECUTE format('ALTER TABLE step_routes_%s ALTER routes SET STORAGE EXTERNAL', run);
  EXECUTE format('ALTER TABLE trained_steps_%s ALTER logprobs SET STORAGE EXTERNAL', run);
END
$$;
COMMENT ON FUNCTION open_partition(int) IS 'Makes the partitions of a new run: its steps, their routes and trainer logprobs, messages and prompts.';

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% of % is refused: its rows are immutable', TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;
COMMENT ON FUNCTION refuse_change() IS 'The trigger of append-only tables.';
