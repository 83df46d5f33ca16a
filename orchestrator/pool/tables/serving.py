"""Clients and servers of completions: sessions of harnesses and rollout servers."""

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

from orchestrator.contracts.states import ServerState, SessionState
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import moment as _moment
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

sessions = Table(
    "sessions",
    metadata,
    _id("session_id", "the session"),
    _run(),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout that may ask for completions"),
    Column("attempt", SmallInteger, nullable=False, comment="of this attempt"),
    Column("epoch", Integer, nullable=False, comment="and of this lease epoch only"),
    Column("token_hash", LargeBinary, nullable=False, unique=True, comment="sha256 of the token"),
    Column(
        "budget",
        JSONB,
        nullable=False,
        comment="limits of the session: calls, tokens, seconds, context; and how it samples",
    ),
    Column(
        "state",
        Text,
        nullable=False,
        server_default=SessionState.OPEN,
        comment="open | sealed (its result is fixed) | closed (another took its place)",
    ),
    Column("expires", DateTime(timezone=True), nullable=False, comment="after this it is refused"),
    Column(
        "seal",
        JSONB,
        comment="steps, last_idx, digest, marks, seconds queued, calls: the sealed totals; before that, progress",
    ),
    _now("created", "when it was first opened"),
    Column(
        "replayable",
        Boolean,
        nullable=False,
        server_default="false",
        comment="as its scaffold is declared: another lease may go on from its recorded steps",
    ),  # as its scaffold declares
    Column("gateway", Text, comment="the gateway that has it, as in rollout_servers.owner"),
    _one_of("state", SessionState),
    Index(None, "rollout_id", "attempt"),
    comment="Capabilities of harnesses at the gateway; only the sha256 of a token is stored.",
)

rollout_servers = Table(
    "rollout_servers",
    metadata,
    _id("server_id", "the rollout server"),
    _run(),
    Column("url", Text, nullable=False, comment="where it listens"),
    Column("owner", Text, comment="the gateway that holds its lease"),
    Column("lease_epoch", Integer, nullable=False, server_default="0", comment="raised by every lease"),
    Column("lease_until", DateTime(timezone=True), comment="when the gateway's lease ends unless renewed"),
    Column(
        "state",
        Text,
        nullable=False,
        server_default=ServerState.STARTING,
        comment="starting | syncing (weights) | ready | failed",
    ),
    Column("version", Integer, comment="the policy version that it serves; null: none yet"),
    Column(
        "weights_digest",
        Text,
        comment="of the weights that it serves: sha256 over its tensors, as the server tells it; null: it does not",
    ),
    Column("detail", Text, comment="what is wrong, in words"),
    _now("changed", "when the row last changed"),
    _moment("draining", "when the drain was requested; null: not draining"),
    UniqueConstraint("run_id", "url"),
    _one_of("state", ServerState),
    comment="Rollout servers of a run, owned by one gateway at a time; version is what serves after a passed canary.",
)
