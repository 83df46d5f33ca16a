"""What happened and what runs: state changes, counters, processes."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, PrimaryKeyConstraint, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

transitions = Table(
    "transitions",
    metadata,
    _id("transition_id"),
    _run(),
    Column("kind", Text, nullable=False),
    Column("entity_id", BigInteger, nullable=False),
    Column("seq", BigInteger),
    Column("from_state", Text),
    Column("to_state", Text, nullable=False),
    Column("epoch", Integer),
    Column("reason", Text),
    _now("at"),
    _one_of("kind", ["group", "rollout", "batch", "run", "message"]),
    Index(None, "kind", "entity_id"),
    comment="The history of every state change, written in the transaction that made it.",
)

counters = Table(
    "counters",
    metadata,
    _run(),
    Column("name", Text, nullable=False),
    Column("value", BigInteger, nullable=False),
    PrimaryKeyConstraint("run_id", "name"),
    comment="Counted no-ops and refusals: stale epochs, duplicates, conflicts.",
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "500"},
)

processes = Table(
    "processes",
    metadata,
    _run(),
    Column("host", Text, nullable=False),
    Column("process", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    _now("started"),
    _now("heard"),
    Column("stopped", Boolean, nullable=False, server_default=text("false")),
    Column("loops", JSONB, nullable=False),
    PrimaryKeyConstraint("run_id", "host", "process"),
    comment="The processes of a run: when each was last heard of, and what its loops work on and wait for.",
    postgresql_with={"fillfactor": "50"},
)
