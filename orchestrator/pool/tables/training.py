"""What was learned from which groups: batches, train steps and the versions that they published."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.contracts.states import BatchState
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import moment as _time
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

policy_versions = Table(
    "policy_versions",
    metadata,
    _run(),
    Column("version", Integer, nullable=False),
    Column("parent", Integer),
    Column("batch_no", Integer),
    Column("path", Text, nullable=False),
    Column("manifest_sha", Text, nullable=False),
    Column("superseded_by", Integer),
    _now("at"),
    PrimaryKeyConstraint("run_id", "version"),
    comment="Published weights. A version number is never used twice, not after a rewind either.",
)

batches = Table(
    "batches",
    metadata,
    _id("batch_id"),
    _run(),
    Column("batch_no", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default="open"),
    Column("size", SmallInteger, nullable=False),
    Column("digest", LargeBinary),
    Column("version", Integer),
    _now("opened"),
    _time("closed"),
    _time("committed"),
    Column("groups_so_far", BigInteger, comment="groups of it and of every committed batch before it"),
    _one_of("state", BatchState),
    CheckConstraint("state NOT IN ('closed', 'committed') OR digest IS NOT NULL", name="digest"),
    Index("batches_live", "run_id", "batch_no", unique=True, postgresql_where=text("state <> 'voided'")),
    CheckConstraint("state <> 'committed' OR groups_so_far IS NOT NULL", name="groups_so_far"),
    Index("batches_state", "run_id", "state", postgresql_include=["size"]),
    comment="One claim of P groups: U >= 1 train steps, one commit, at most one publish.",
)

batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", BigInteger, ForeignKey("batches.batch_id"), nullable=False),
    Column("pos", SmallInteger, nullable=False),
    Column("group_id", BigInteger, ForeignKey("groups.group_id"), nullable=False),
    Column("voided", Boolean, nullable=False, server_default=text("false")),
    _now("taken"),
    PrimaryKeyConstraint("batch_id", "pos"),
    Index("batch_items_once", "group_id", unique=True, postgresql_where=text("NOT voided")),
    comment="Each take is a row and moves the window. A group is in at most one batch that is not voided.",
)

batch_rollouts = Table(
    "batch_rollouts",
    metadata,
    Column("batch_id", BigInteger, ForeignKey("batches.batch_id"), nullable=False),
    Column("group_id", BigInteger, nullable=False),
    Column("rollout_id", BigInteger, ForeignKey("rollouts.rollout_id"), nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("reward_revision", Integer, nullable=False),
    Column("baseline", Float, nullable=False),
    Column("divisor", Float, nullable=False),
    Column("advantage", Float, nullable=False),
    PrimaryKeyConstraint("batch_id", "rollout_id"),
    comment="The rollouts of a taken group: reward revision, baseline, divisor and the first step's advantage pinned.",
)

train_steps = Table(
    "train_steps",
    metadata,
    _run(),
    Column("train_step", Integer, nullable=False),
    Column("batch_id", BigInteger, ForeignKey("batches.batch_id"), nullable=False),
    Column("part", SmallInteger, nullable=False),
    Column("metrics", JSONB, nullable=False),
    _now("at"),
    PrimaryKeyConstraint("run_id", "train_step", "batch_id"),
    UniqueConstraint("batch_id", "part"),
    comment="One optimizer step, written in its batch's commit, with its metrics.",
)
