"""Generation: the step tree, its root prompts, marks and readings."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
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
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL

from orchestrator.contracts.states import StepKind
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import moment as _moment
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

prompts = Table(
    "prompts",
    metadata,
    Column("run_id", Integer, nullable=False, comment="the run that the row belongs to"),
    Column("sha", LargeBinary, nullable=False, comment="sha256 of ids"),
    Column("n", Integer, nullable=False, comment="tokens"),
    Column(
        "ids", LargeBinary, nullable=False, comment="token ids, int32 little-endian: i4(ids) is the array"
    ),
    PrimaryKeyConstraint("run_id", "sha"),
    CheckConstraint("length(sha) = 32", name="sha"),
    CheckConstraint("length(ids) = 4 * n", name="ids"),
    comment="Root contexts, content-addressed: shared by the members of a group and by retries.",
    postgresql_partition_by="LIST (run_id)",
)

sampling = Table(
    "sampling",
    metadata,
    _id("sampling_id", "steps name it"),
    _run(),
    Column("sha", LargeBinary, nullable=False, comment="sha256 of the canonical JSON of params"),
    Column("params", JSONB, nullable=False, comment="temperature, top_p, top_k, …"),
    UniqueConstraint("run_id", "sha"),
    comment="Distinct sets of sampling parameters; sha is over the canonical JSON.",
)

steps = Table(
    "steps",
    metadata,
    Column(
        "run_id",
        Integer,
        nullable=False,
        comment="the run that the row belongs to; always filter by it, trajectories are partitioned by run",
    ),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout"),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt"),
    Column("idx", Integer, nullable=False, comment="commit index over all branches of the attempt, 0 and up"),
    Column("epoch", Integer, nullable=False, comment="lease epoch that recorded it"),
    Column(
        "kind",
        Text,
        nullable=False,
        comment="root | continues (keeps all of its parent) | rewrites (keeps a part: compaction, another branch)",
    ),
    Column("parent_idx", Integer, comment="the step that it goes on from; null for a root"),
    Column("root_idx", Integer, nullable=False, comment="the root of its branch"),
    Column("prompt_sha", LargeBinary, comment="the prompt that a root begins with, where it is shared"),
    Column(
        "keep_len",
        Integer,
        nullable=False,
        comment="tokens kept of the parent's full sequence, or of the prompt",
    ),
    Column(
        "state_len",
        Integer,
        nullable=False,
        comment="tokens of the whole context of the request: keep_len + delta",
    ),
    Column("full_len", Integer, nullable=False, comment="state_len + action tokens"),
    Column("v_lo", Integer, nullable=False, comment="lowest policy version that made a token of the action"),
    Column("v_hi", Integer, nullable=False, comment="highest policy version that made a token of the action"),
    Column(
        "spans",
        ARRAY(Integer),
        nullable=False,
        comment="[version, start, end, version, start, end, …] over the action's tokens, end exclusive",
    ),
    Column("sampling_id", BigInteger, nullable=False, comment="the parameters that it was sampled with"),
    Column(
        "agent",
        Text,
        nullable=False,
        comment="which agent of the scaffold made the request: main, or a sub-agent's name",
    ),
    Column("finish", Text, nullable=False, comment="stop | length | abort"),
    Column("parse", Text, nullable=False, comment="ok | ill_formed"),
    Column(
        "t_queue",
        REAL,
        comment="seconds of this call in which it was not generated, until its reply; concurrent calls overlap: do not add them up",
    ),
    Column("t_first", REAL, comment="seconds until the first token, waiting left out: a part of t_gen"),
    Column("t_gen", REAL, comment="seconds of generation, waiting left out, the first token included"),
    Column(
        "t_gap",
        REAL,
        comment="seconds without any call of the attempt in flight, since the step before: the agent and its tools; gaps do not overlap",
    ),
    _now("at", "when it was recorded, by the database's clock"),
    Column("request_digest", LargeBinary, comment="sha256 of the request as the scaffold sent it"),
    Column("branch_reason", Text, comment="why it is not a plain continuation"),
    Column(
        "chain_sha",
        LargeBinary,
        nullable=False,
        comment="sha256(parent's chain_sha or prompt's sha or 32 zero bytes, keep_len, delta, action)",
    ),
    Column(
        "row_sha", LargeBinary, nullable=False, comment="sha256 over chain_sha, logprobs, spans and sampling"
    ),
    Column(
        "delta",
        LargeBinary,
        nullable=False,
        comment="token ids that were added to what is kept, int32 little-endian",
    ),
    Column(
        "action", LargeBinary, nullable=False, comment="token ids that the policy made, int32 little-endian"
    ),
    Column(
        "logprobs",
        LargeBinary,
        nullable=False,
        comment="behavior logprobs of the action, float32 little-endian",
    ),
    Column(
        "branch",
        JSONB,
        comment="where the request first differs from the nearest recorded conversation: near, turn, field, recorded, sent",
    ),  # where the request first differs from the nearest recorded conversation
    Column(
        "weights",
        ARRAY(Text),
        comment="version:digest of each policy version of its spans, as the rollout server reported with the tokens; null: it reported none",
    ),
    _moment(
        "ended",
        "when its reply was ready, by the database's clock; its call came at ended - t_gen - t_queue; null: older than this column",
    ),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx"),
    _one_of("kind", StepKind),
    CheckConstraint("length(delta) = 4 * (state_len - keep_len)", name="delta"),
    CheckConstraint("length(action) = 4 * (full_len - state_len)", name="action"),
    CheckConstraint("length(logprobs) = length(action)", name="logprobs"),
    CheckConstraint("(kind = 'root') = (parent_idx IS NULL)", name="parent"),
    CheckConstraint("parent_idx IS NULL OR prompt_sha IS NULL", name="one_origin"),
    CheckConstraint("keep_len = 0 OR parent_idx IS NOT NULL OR prompt_sha IS NOT NULL", name="keep"),
    CheckConstraint("length(chain_sha) = 32 AND length(row_sha) = 32", name="shas"),
    Index("steps_branched", "run_id", "rollout_id", postgresql_where=text("branch_reason IS NOT NULL")),
    comment="The trajectory store: a tree of deltas. full = state + action; state = parent.full[:keep_len] + delta. Immutable.",
    postgresql_partition_by="LIST (run_id)",
)

step_routes = Table(
    "step_routes",
    metadata,
    Column(
        "run_id",
        Integer,
        nullable=False,
        comment="the run that the row belongs to; always filter by it, trajectories are partitioned by run",
    ),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout"),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt"),
    Column("idx", Integer, nullable=False, comment="commit index over all branches of the attempt, 0 and up"),
    Column("start", Integer, nullable=False, comment="position of the first token that it has experts of"),
    Column("layers", SmallInteger, nullable=False, comment="layers with experts"),
    Column("top_k", SmallInteger, nullable=False, comment="experts per token and layer"),
    Column("width", SmallInteger, nullable=False, comment="bytes per expert id, 1 or 2"),
    Column("sha", LargeBinary, nullable=False, comment="sha256 over the routes and the step's chain_sha"),
    Column("routes", LargeBinary, nullable=False, comment="expert ids [n, layers, top_k]"),
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
    Column(
        "run_id",
        Integer,
        nullable=False,
        comment="the run that the row belongs to; always filter by it, trajectories are partitioned by run",
    ),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout"),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt"),
    Column("idx", Integer, nullable=False, comment="commit index over all branches of the attempt, 0 and up"),
    Column(
        "reason",
        Text,
        nullable=False,
        comment="undelivered | auxiliary | side_conversation | version_suspect | drift | cut_off",
    ),
    _now("at", "when it was written, by the database's clock"),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx", "reason"),
    comment="Append-only: a marked step (undelivered, auxiliary, side_conversation, version_suspect, drift) has train weight 0; one that is only "
    "cut_off has train weight 1 where its advantage is negative.",
)

messages = Table(
    "messages",
    metadata,
    Column(
        "run_id",
        Integer,
        nullable=False,
        comment="the run that the row belongs to; always filter by it, trajectories are partitioned by run",
    ),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout"),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt"),
    Column("idx", Integer, nullable=False, comment="commit index over all branches of the attempt, 0 and up"),
    Column(
        "appended",
        JSONB,
        nullable=False,
        comment="the messages that the request added, as the scaffold's dialect had them, made uniform",
    ),
    Column("reply", JSONB, nullable=False, comment="the parsed action: content, reasoning, tool_calls"),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx"),
    comment="A reading of a step: the messages that its request added, and the parsed action. The ids are the truth.",
    postgresql_partition_by="LIST (run_id)",
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column(
        "run_id",
        Integer,
        nullable=False,
        comment="the run that the row belongs to; always filter by it, trajectories are partitioned by run",
    ),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout"),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt"),
    Column("idx", Integer, nullable=False, comment="commit index over all branches of the attempt, 0 and up"),
    Column("call", SmallInteger, nullable=False, comment="number of the call in its step, 0 and up"),
    Column("name", Text, nullable=False, comment="the tool"),
    Column("start_s", REAL, comment="seconds since the attempt's start"),
    Column("end_s", REAL, comment="seconds since the attempt's start"),
    Column("exit_code", Integer, comment="of the tool's command, where it has one"),
    Column("bytes", BigInteger, comment="size of its output"),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx", "call"),
    comment="Tool executions of white-box scaffolds, in seconds since the attempt's start.",
)
