"""Between the data pool and the bus: messages owed, and messages that could not be used."""

from sqlalchemy import Column, DateTime, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.pool.columns import CHURNS, metadata
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import run as _run

_LETTER = "coalesce(run_id, 0)|left(subject, 256)|left(coalesce(msg_id, ''), 256)|sha256(body)"

outbox = Table(
    "outbox",
    metadata,
    _id("outbox_id"),
    _run(),
    Column("subject", Text, nullable=False),
    Column("schema", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("not_before", DateTime(timezone=True)),
    _now("at"),
    comment="Messages that a committed state change owes to the bus; a row is deleted once its publish is acknowledged.",
    postgresql_with={"fillfactor": "70", **CHURNS},
)

dead_letters = Table(
    "dead_letters",
    metadata,
    _id("dead_letter_id"),
    Column("run_id", Integer),
    Column("stream", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("schema", Text),
    Column("msg_id", Text),
    Column("reason", Text, nullable=False),
    Column("deliveries", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    _now("at"),
    Index("dead_letters_once", *map(text, _LETTER.split("|")), unique=True),
    comment="Messages that could not be used, whole, with the reason.",
)
