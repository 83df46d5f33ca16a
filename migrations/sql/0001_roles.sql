DO $$
DECLARE role text;
BEGIN
  -- Roles belong to the server, not to the database: another database may have made them already, even at this moment.
  FOREACH role IN ARRAY ARRAY['penstock_reader', 'penstock_gateway', 'penstock_runner', 'penstock_trainer'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', role);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
  END LOOP;
END $$
--;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer
--;
GRANT INSERT, UPDATE ON sessions, rollout_servers TO penstock_gateway
--;
GRANT INSERT, UPDATE ON counters TO penstock_gateway, penstock_runner, penstock_trainer
--;
GRANT UPDATE ON rollouts TO penstock_runner
--;
GRANT INSERT, UPDATE ON attempts TO penstock_runner
--;
GRANT INSERT ON transitions TO penstock_runner, penstock_trainer
--;
GRANT INSERT ON train_steps, batch_rollouts, policy_versions, outbox TO penstock_trainer
--;
GRANT INSERT, UPDATE ON batches, batch_items TO penstock_trainer
--;
GRANT UPDATE ON groups, queue TO penstock_trainer
