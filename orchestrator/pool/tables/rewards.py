"""What a rollout was worth: verdicts and composite rewards, append-only."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB, REAL

from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import run as _run

verdicts = Table(
    "verdicts",
    metadata,
    _run(),
    Column("rollout_id", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("reward", Float, nullable=False),
    Column("tests", JSONB, nullable=False),
    Column("exit_code", Integer),
    Column("log", Text),
    Column("verify_s", REAL),
    _now("at"),
    PrimaryKeyConstraint("rollout_id", "revision"),
    CheckConstraint("reward >= 0 AND reward <= 1", name="reward"),
    comment="Append-only verifier results; reward in [0, 1] is the performance part.",
)

rewards = Table(
    "rewards",
    metadata,
    _run(),
    Column("rollout_id", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("verdict_revision", Integer, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("performance", Float, nullable=False),
    Column("speed", Float, nullable=False),
    Column("process", Float, nullable=False),
    Column("alpha", Float, nullable=False),
    Column("beta", Float, nullable=False),
    Column("total", Float, nullable=False),
    Column("t_agent", Float),
    Column("t_base", Float),
    Column("baseline", Float),
    Column("divisor", Float),
    Column("advantage", Float),
    Column("per_step", JSONB, nullable=False),
    _now("at"),
    PrimaryKeyConstraint("rollout_id", "revision"),
    comment="Append-only composite rewards: total = performance + beta*speed + alpha*process; per_step holds every part and each step's advantage.",
)
