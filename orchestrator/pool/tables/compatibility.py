"""The code that may run on the database: one row, kept by the migrations (ops/guides/upgrade.md)."""

from sqlalchemy import Boolean, CheckConstraint, Column, Table, Text, text

from orchestrator.pool.columns import metadata

compatibility = Table(
    "compatibility",
    metadata,
    Column(
        "one",
        Boolean,
        primary_key=True,
        server_default=text("true"),
        comment="true: the table has one row",
    ),
    Column(
        "oldest_code",
        Text,
        nullable=False,
        comment="revision of the oldest code that may run on this database; the last contraction set it",
    ),
    CheckConstraint("one", name="one"),
    comment="Code that may run on this database: revisions from oldest_code up to alembic_version, and newer.",
)
