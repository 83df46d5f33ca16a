"""The invariants I1–I7 as code: an auditor that reads the data pool, the checkpoints and a ledger, and names every row that breaks an
invariant.

    findings   results of an audit: violations, checks, the report
    snapshot   input of an audit: one read-only repeatable-read transaction, and facts about the outside from the caller
    statement  a check that is one SQL statement
    i1_accepted, i1_blobs · i2_batches · i3_steps, i3_records, i3_external_record · i4_queue · i5_leases, i5_sandboxes · i6_versions ·
    i7_failures: the checks, by invariant
    resumes    attempts that continue under another lease (I3, I5)
    run        all of them, in order

It knows the schema and the vocabulary, never the processes. On purpose it reads the rows that it checks with its own statements, not with those of
`pool` or `queries`: a mistake in shared code would be in both, and neither would find it. From `pool` it uses the look-up of a run, `from_row`, the
canonical form of steps and the list of needed versions. I4 replays the queue's history through `scheduling.queue_policies`, the policy itself;
`tests/unit/scheduling/test_window.py` holds that against a literal reading of its rule.
"""

from orchestrator.audit.findings import Checked, Report, Violation
from orchestrator.audit.run import audit

__all__ = ["Checked", "Report", "Violation", "audit"]
