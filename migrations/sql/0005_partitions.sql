CREATE FUNCTION open_partition_of(parent text, run int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE own text := format('%s_%s', parent, run);
BEGIN
  EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', own, parent);
  EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES IN (%s)', parent, own, run);
  EXECUTE format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON %I EXECUTE FUNCTION refuse_change()', own);
  EXECUTE format('GRANT SELECT ON %I TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer', own);
END
$$
--;
COMMENT ON FUNCTION open_partition_of(text, int) IS 'Makes the partition of a new run in one of the tables that hold its trajectories. Retention is DETACH and DROP of a partition.'
--;
CREATE OR REPLACE FUNCTION open_partition(run int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM open_partition_of(parent, run) FROM unnest(ARRAY['steps', 'messages', 'prompts']) parent;
  EXECUTE format('ALTER TABLE steps_%s ALTER delta SET STORAGE EXTERNAL, ALTER action SET STORAGE EXTERNAL, ALTER logprobs SET STORAGE EXTERNAL', run);
END
$$
--;
COMMENT ON FUNCTION open_partition(int) IS 'Makes the partitions of a new run: its steps, messages and prompts.'
