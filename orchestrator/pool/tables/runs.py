"""A run as a whole: its configuration, its queue, the tasks that came in and what was answered."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import moment as _time
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

runs = Table(
    "runs",
    metadata,
    Column("run_id", Integer, Identity(always=False), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("state", Text, nullable=False, server_default="active"),
    Column("config", JSONB, nullable=False),
    _now("created"),
    _time("ended"),
    _time("pruned"),  # since then its steps, messages and prompts are dropped
    CheckConstraint("name ~ '^[a-z0-9_-]{1,32}$'", name="name"),
    _one_of("state", ["active", "ending", "ended"]),
    comment="One training run; nothing refers across runs. config is the resolved configuration.",
)

queue = Table(
    "queue",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.run_id"), primary_key=True, autoincrement=False),
    Column("next_seq", BigInteger, nullable=False, server_default="0"),
    Column("floor_seq", BigInteger, nullable=False, server_default="0"),
    Column("intake_open", Boolean, nullable=False, server_default=text("true")),
    Column("admission_open", Boolean, nullable=False, server_default=text("true")),
    Column("admission_reason", Text),
    comment="One row per run, locked for every claim and dispatch. No open position lies below floor_seq.",
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "500"},
)

tasks = Table(
    "tasks",
    metadata,
    _id("task_id"),
    _run(),
    Column("sha", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("settings", JSONB, nullable=False),
    Column("body", JSONB, nullable=False),
    _now("created"),
    UniqueConstraint("run_id", "sha"),
    comment="Task directories as packed JSON, content-addressed per run.",
)

submissions = Table(
    "submissions",
    metadata,
    _run(),
    Column("submission", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    _now("at"),
    PrimaryKeyConstraint("run_id", "submission"),
    _one_of("status", ["accepted", "rejected"]),
    comment="The answer to every task message: the row behind the accepted.<run>.<submission> notice.",
)
