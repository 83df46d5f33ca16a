"""Who may ask for completions, and who answers: sessions of harnesses and rollout servers."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.contracts.states import ServerState
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

sessions = Table(
    "sessions",
    metadata,
    _id("session_id"),
    _run(),
    Column("rollout_id", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("token_hash", LargeBinary, nullable=False, unique=True),
    Column("budget", JSONB, nullable=False),
    Column("state", Text, nullable=False, server_default="open"),
    Column("expires", DateTime(timezone=True), nullable=False),
    Column("seal", JSONB),
    _now("created"),
    Column("replayable", Boolean, nullable=False, server_default="false"),  # as its scaffold is declared
    _one_of("state", ["open", "sealed", "closed"]),
    Index(None, "rollout_id", "attempt"),
    comment="Capabilities of harnesses at the gateway; only the sha256 of a token is stored.",
)

rollout_servers = Table(
    "rollout_servers",
    metadata,
    _id("server_id"),
    _run(),
    Column("url", Text, nullable=False),
    Column("owner", Text),
    Column("lease_epoch", Integer, nullable=False, server_default="0"),
    Column("lease_until", DateTime(timezone=True)),
    Column("state", Text, nullable=False, server_default="starting"),
    Column("version", Integer),
    Column("detail", Text),
    _now("changed"),
    UniqueConstraint("run_id", "url"),
    _one_of("state", ServerState),
    comment="Rollout servers of a run, owned by one gateway at a time; version is what serves after a passed canary.",
)
