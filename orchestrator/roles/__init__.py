"""The orchestrator process: one role per file. `orchestrator.app` starts them.

`intake` accepts tasks; `dispatcher` queues groups; `relay` sends work; `ingest` stores steps, results and verdicts; `complete` ends rollouts and
groups, `reward` computes their rewards; `reaper` ends leases; `run_end` ends the run; `readers` ends sessions of readers that last too long.
"""
