"""What was generated: the step tree, its root prompts, marks and readings."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL

from orchestrator.contracts.states import StepKind
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

prompts = Table(
    "prompts",
    metadata,
    Column("run_id", Integer, nullable=False),
    Column("sha", LargeBinary, nullable=False),
    Column("n", Integer, nullable=False),
    Column("ids", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_id", "sha"),
    CheckConstraint("length(sha) = 32", name="sha"),
    CheckConstraint("length(ids) = 4 * n", name="ids"),
    comment="Root contexts, content-addressed: shared by the members of a group and by retries.",
    postgresql_partition_by="LIST (run_id)",
)

sampling = Table(
    "sampling",
    metadata,
    _id("sampling_id"),
    _run(),
    Column("sha", LargeBinary, nullable=False),
    Column("params", JSONB, nullable=False),
    UniqueConstraint("run_id", "sha"),
    comment="Distinct sets of sampling parameters; sha is over the canonical JSON.",
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", Integer, nullable=False),
    Column("rollout_id", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("parent_idx", Integer),
    Column("root_idx", Integer, nullable=False),
    Column("prompt_sha", LargeBinary),
    Column("keep_len", Integer, nullable=False),
    Column("state_len", Integer, nullable=False),
    Column("full_len", Integer, nullable=False),
    Column("v_lo", Integer, nullable=False),
    Column("v_hi", Integer, nullable=False),
    Column("spans", ARRAY(Integer), nullable=False),
    Column("sampling_id", BigInteger, nullable=False),
    Column("agent", Text, nullable=False),
    Column("finish", Text, nullable=False),
    Column("parse", Text, nullable=False),
    Column("t_queue", REAL),
    Column("t_first", REAL),
    Column("t_gen", REAL),
    Column("t_gap", REAL),
    _now("at"),
    Column("request_digest", LargeBinary),
    Column("branch_reason", Text),
    Column("chain_sha", LargeBinary, nullable=False),
    Column("row_sha", LargeBinary, nullable=False),
    Column("delta", LargeBinary, nullable=False),
    Column("action", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),
    Column("branch", JSONB),  # where the request first differs from the nearest recorded conversation
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx"),
    _one_of("kind", StepKind),
    CheckConstraint("length(delta) = 4 * (state_len - keep_len)", name="delta"),
    CheckConstraint("length(action) = 4 * (full_len - state_len)", name="action"),
    CheckConstraint("length(logprobs) = length(action)", name="logprobs"),
    CheckConstraint("(kind = 'root') = (parent_idx IS NULL)", name="parent"),
    CheckConstraint("parent_idx IS NULL OR prompt_sha IS NULL", name="one_origin"),
    CheckConstraint("keep_len = 0 OR parent_idx IS NOT NULL OR prompt_sha IS NOT NULL", name="keep"),
    CheckConstraint("length(chain_sha) = 32 AND length(row_sha) = 32", name="shas"),
    comment="The trajectory store: a tree of deltas. full = state + action; state = parent.full[:keep_len] + delta. Immutable.",
    postgresql_partition_by="LIST (run_id)",
)

step_routes = Table(
    "step_routes",
    metadata,
    Column("run_id", Integer, nullable=False),
    Column("rollout_id", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("layers", SmallInteger, nullable=False),
    Column("top_k", SmallInteger, nullable=False),
    Column("width", SmallInteger, nullable=False),
    Column("sha", LargeBinary, nullable=False),
    Column("routes", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx"),
    CheckConstraint("start >= 0 AND layers > 0 AND top_k > 0 AND width IN (1, 2)", name="shape"),
    CheckConstraint("length(sha) = 32", name="sha"),
    CheckConstraint(
        "length(routes) > 0 AND length(routes) % (layers::integer * top_k * width) = 0", name="routes"
    ),
    comment="Which experts of a mixture a step's tokens were sent to, where routing replay is on. routes: ids [n, layers, top_k] of width "
    "bytes each, little-endian, in C order, of positions start to start + n - 1; sha covers them and the step's chain_sha. Immutable.",
    postgresql_partition_by="LIST (run_id)",
)

step_marks = Table(
    "step_marks",
    metadata,
    Column("run_id", Integer, nullable=False),
    Column("rollout_id", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    _now("at"),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx", "reason"),
    comment="Append-only: a marked step (undelivered, auxiliary, version_suspect, drift) has train weight 0.",
)

messages = Table(
    "messages",
    metadata,
    Column("run_id", Integer, nullable=False),
    Column("rollout_id", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("appended", JSONB, nullable=False),
    Column("reply", JSONB, nullable=False),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx"),
    comment="A reading of a step: the messages that its request added, and the parsed action. The ids are the truth.",
    postgresql_partition_by="LIST (run_id)",
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("run_id", Integer, nullable=False),
    Column("rollout_id", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("call", SmallInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("start_s", REAL),
    Column("end_s", REAL),
    Column("exit_code", Integer),
    Column("bytes", BigInteger),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx", "call"),
    comment="Tool executions of white-box scaffolds, in seconds since the attempt's start.",
)
