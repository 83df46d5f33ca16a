"""The orchestrator process: one role per file. `orchestrator.app` starts them.

`intake` accepts tasks; `dispatcher` queues groups; `relay` sends work; `ingest` and `complete` turn results into rewards; `reaper` ends leases;
`run_end` ends the run; `readers` ends sessions of readers that last too long.
"""
