CREATE TABLE step_routes (run_id integer NOT NULL, rollout_id bigint NOT NULL, attempt smallint NOT NULL, idx integer NOT NULL, start integer NOT NULL,
  layers smallint NOT NULL, top_k smallint NOT NULL, width smallint NOT NULL, sha bytea NOT NULL, routes bytea NOT NULL,
  CONSTRAINT step_routes_pkey PRIMARY KEY (run_id, rollout_id, attempt, idx),
  CONSTRAINT step_routes_shape CHECK (start >= 0 AND layers > 0 AND top_k > 0 AND width IN (1, 2)),
  CONSTRAINT step_routes_sha CHECK (length(sha) = 32),
  CONSTRAINT step_routes_routes CHECK (length(routes) > 0 AND length(routes) % (layers::integer * top_k * width) = 0)) PARTITION BY LIST (run_id)
--;
COMMENT ON TABLE step_routes IS 'Which experts of a mixture a step''s tokens were sent to, where routing replay is on. routes: ids [n, layers, top_k] of width bytes each, little-endian, in C order, of positions start to start + n - 1; sha covers them and the step''s chain_sha. Immutable.'
--;
CREATE TRIGGER step_routes_immutable BEFORE UPDATE OR DELETE ON step_routes FOR EACH ROW EXECUTE FUNCTION refuse_change()
--;
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON step_routes EXECUTE FUNCTION refuse_change()
--;
GRANT SELECT ON step_routes TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer
--;
CREATE OR REPLACE FUNCTION open_partition(run int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM open_partition_of(parent, run) FROM unnest(ARRAY['steps', 'step_routes', 'messages', 'prompts']) parent;
  EXECUTE format('ALTER TABLE steps_%s ALTER delta SET STORAGE EXTERNAL, ALTER action SET STORAGE EXTERNAL, ALTER logprobs SET STORAGE EXTERNAL', run);
  EXECUTE format('ALTER TABLE step_routes_%s ALTER routes SET STORAGE EXTERNAL', run);
END
$$
--;
COMMENT ON FUNCTION open_partition(int) IS 'Makes the partitions of a new run: its steps, their routes, messages and prompts.'
--;
SELECT open_partition_of('step_routes', run_id) FROM runs WHERE pruned IS NULL
--;
DO $$
DECLARE one int;
BEGIN
  FOR one IN SELECT run_id FROM runs WHERE pruned IS NULL LOOP
    EXECUTE format('ALTER TABLE step_routes_%s ALTER routes SET STORAGE EXTERNAL', one);
  END LOOP;
END $$
