"""The data pool: tables, every write, and the reads that the trainer and the roles act on.

tables/ · columns · rows                        the declared schema, and rows as values
engine · address · opened · locks               connections, roles, and the check that the schema fits the code
rights · reader_login · reader_rights           rights of the migrations' login and of logins that only read
transact · transitions · outbox                 one transaction: compare-and-set, history row, messages to send
settled · dead_letters · suspect_messages       the bus: settled messages, unusable ones, those that may end their process
sanitize                                        clean text
runs · run_end · curriculum · counter_names     a run: its creation, its stages, its counters, its end
submissions · vettings · blobs                  accepted tasks, their levels, the files of large ones
dispatch · leases · lease_check · resumes       from the queue to a runner: assignments, leases, continued attempts
ingest · steps · step_content · routes          recorded steps: written once, read back
sessions · rebuilt_steps · server_leases        the gateway's rows: sessions, and the owners of rollout servers
results · groups · rescore · speed_noise        results and verdicts, rewards of whole groups, new verdicts, measured noise
batches · quarantine · rewind                   batches: claimed, committed, voided
policy_versions · chat_format                   published versions, and the tokenizer of a run
trainer_logprobs                                trainer logprobs of trained steps
heartbeats · draining · drain_requests          living processes, their orders to drain
backlog · stall_causes · code_digest            why a run waits, and which code a process runs
steer · prune                                   actions of people; retention

A write is a compare-and-set with its history and outbox rows in one transaction. A read belongs here if a decision or a claim depends on it
(the next lease, the next batch, an attempt's steps). Reads for people are read models of `orchestrator.queries`.
"""
