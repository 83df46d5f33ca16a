"""Content-addressed blobs: the parts of tasks that are too large for a message."""

from sqlalchemy import CheckConstraint, Column, LargeBinary, Table

from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import now as _now

blobs = Table(
    "blobs",
    metadata,
    Column("sha", LargeBinary, primary_key=True, comment="sha256 of the body"),
    Column(
        "body", LargeBinary, nullable=False, comment="at most 900,000 bytes of a file, or a directory as JSON"
    ),
    _now("at", "when it was stored, or last named by a task that was accepted"),
    CheckConstraint("octet_length(sha) = 32", name="sha"),
    comment="Parts of large tasks by their sha256, for all runs together. A task's body names them.",
)
