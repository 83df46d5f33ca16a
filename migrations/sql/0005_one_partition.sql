CREATE OR REPLACE FUNCTION open_partition(run int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TABLE steps_%s (LIKE steps INCLUDING ALL)', run);
  EXECUTE format('ALTER TABLE steps_%s ALTER delta SET STORAGE EXTERNAL, ALTER action SET STORAGE EXTERNAL, ALTER logprobs SET STORAGE EXTERNAL', run);
  EXECUTE format('ALTER TABLE steps ATTACH PARTITION steps_%s FOR VALUES IN (%s)', run, run);
  EXECUTE format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON steps_%s EXECUTE FUNCTION refuse_change()', run);
  EXECUTE format('GRANT SELECT ON steps_%s TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer', run);
END
$$
--;
COMMENT ON FUNCTION open_partition(int) IS 'Makes the steps partition of a new run. Retention is DETACH and DROP of a partition.'
