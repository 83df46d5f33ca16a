-- A role per kind of process, and what each may do (tests/integration/pool/test_migrations.py lists it). A later migration that makes a table or
-- view grants SELECT on it to all four.

DO $$
DECLARE role text;
BEGIN
  -- Roles belong to the server, not to the database: another database may have made them already, even at this moment.
  -- A login that may make none goes on where they are there (orchestrator/pool/rights.py says what else to do).
  FOREACH role IN ARRAY ARRAY['penstock_reader', 'penstock_gateway', 'penstock_runner', 'penstock_trainer'] LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = role);
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', role);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
  END LOOP;
END $$;

GRANT SELECT ON ALL TABLES IN SCHEMA public TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer;

GRANT INSERT, UPDATE ON counters, processes TO penstock_gateway, penstock_runner, penstock_trainer;

GRANT INSERT, UPDATE ON sessions, rollout_servers TO penstock_gateway;
-- A step that no stream can ever take is kept where people look for such things.
GRANT INSERT ON dead_letters TO penstock_gateway;

GRANT UPDATE ON rollouts TO penstock_runner;
GRANT INSERT, UPDATE ON attempts TO penstock_runner;
GRANT INSERT, UPDATE (at) ON blobs TO penstock_runner;
GRANT INSERT ON transitions TO penstock_runner, penstock_trainer;

GRANT INSERT ON train_steps, trained_steps, batch_rollouts, policy_versions, outbox TO penstock_trainer;
GRANT INSERT, UPDATE ON batches, batch_items TO penstock_trainer;
GRANT UPDATE ON groups, queue TO penstock_trainer;
