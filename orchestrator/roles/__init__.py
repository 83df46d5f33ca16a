"""The orchestrator process: one role per file. `orchestrator.app` starts them.

`intake` accepts tasks; `dispatcher` queues groups; `relay` sends work; `ingest` stores steps, results and verdicts; `complete` ends rollouts and
`conclude` groups, `reward` computes their rewards; `retry_policy` decides what follows a failure; `reaper` ends leases; `run_end` ends the run;
`readers` ends sessions of readers that last too long.
"""
