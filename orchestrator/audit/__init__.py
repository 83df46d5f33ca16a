"""The invariants I1–I7 as code: an auditor that reads the data pool, the checkpoints and a ledger, and names every row that breaks one.

    findings   what an audit says: violations, checks, the report
    snapshot   what it looks at: one read-only repeatable-read transaction, and what was told about the outside
    statement  a check that is one SQL statement
    accepted (I1) · batches (I2) · steps, records, witness (I3) · queue (I4) · leases, resumes (I5, I3) · versions (I6) · failures (I7)
    run        all of them, in order

It knows the schema and the vocabulary, never the processes: what it does not share with them it cannot get wrong with them.
"""

from orchestrator.audit.findings import Checked, Report, Violation
from orchestrator.audit.run import audit

__all__ = ["Checked", "Report", "Violation", "audit"]
