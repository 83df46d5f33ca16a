"""The declared schema of the data pool. `alembic upgrade head` must give exactly this (a test compares them).

Conventions: every key carries run_id; token ids are little-endian int32 and logprobs little-endian float32 in bytea columns
(SQL functions i4 and f4 give arrays); times are timestamptz from the database's clock; states are text checked against the enums of
`orchestrator.contracts.states`; steps have no foreign keys, because messages arrive in any order and replays are no-ops.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Float,
    ForeignKey,
    Identity,
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

from orchestrator.contracts.states import (
    BatchState,
    FailureClass,
    GroupState,
    Purpose,
    Replay,
    RolloutState,
    ServerState,
    StepKind,
)
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata as metadata
from orchestrator.pool.columns import moment as _time
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

_OPEN = text("NOT done")
_OF_KIND = text("state = 'accepted' AND difficulty IS NOT NULL")
_OTHER = text("state = 'accepted' AND purpose <> 'train'")
# Dead versions are gone again before a table has doubled, however long its past is.
_CHURNS = {"autovacuum_vacuum_scale_factor": "0.01", "autovacuum_vacuum_threshold": "2000"}

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

groups = Table(
    "groups",
    metadata,
    _id("group_id"),
    _run(),
    Column("submission", Text, nullable=False),
    Column("task_id", BigInteger, ForeignKey("tasks.task_id"), nullable=False),
    Column("domain", Text, nullable=False),
    Column("purpose", Text, nullable=False, server_default="train"),
    Column("label", Text),
    Column("scaffold", Text, nullable=False),
    Column("size", SmallInteger, nullable=False),
    Column("pinned_version", Integer),
    Column("sampling", JSONB(none_as_null=True)),
    Column("seq", BigInteger),
    Column("difficulty", Text, comment="of its task, where stages follow one another; null elsewhere"),
    Column("stage", SmallInteger, comment="number of the stage that it was dispatched in; null: the first"),
    Column("state", Text, nullable=False, server_default="accepted"),
    Column("reason", Text),
    Column(
        "done",
        Boolean,
        Computed("state IN ('trained', 'scored', 'filtered', 'dead')", persisted=True),
        nullable=False,
    ),
    _now("created"),
    _time("dispatched"),
    _time("ready"),
    _time("ended"),
    UniqueConstraint("run_id", "submission"),
    UniqueConstraint("run_id", "seq"),
    CheckConstraint("purpose = 'train' OR seq IS NULL", name="seq_only_train"),
    CheckConstraint("purpose <> 'train' OR sampling IS NULL", name="sampling_not_train"),
    CheckConstraint("size >= 1", name="size"),
    CheckConstraint("state NOT IN ('filtered', 'dead') OR reason IS NOT NULL", name="reason_given"),
    _one_of("purpose", Purpose),
    _one_of("state", GroupState),
    Index("groups_open", "run_id", "seq", postgresql_include=["state", "group_id"], postgresql_where=_OPEN),
    Index("groups_accepted", "run_id", "domain", "group_id", postgresql_where=text("state = 'accepted'")),
    Index("groups_of_kind", "run_id", "difficulty", "domain", "group_id", postgresql_where=_OF_KIND),
    Index("groups_other", "run_id", "group_id", postgresql_where=_OTHER),
    comment="One accepted submission = one group = one terminal state. seq is the dispatch order of train groups.",
    postgresql_with={"fillfactor": "85"},
)

rollouts = Table(
    "rollouts",
    metadata,
    _id("rollout_id"),
    _run(),
    Column("group_id", BigInteger, ForeignKey("groups.group_id"), nullable=False),
    Column("member", SmallInteger, nullable=False),
    Column("pool", Text, nullable=False, server_default="default"),
    Column("seed", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False, server_default="1"),
    Column("state", Text, nullable=False, server_default="waiting"),
    Column("lease_epoch", Integer, nullable=False, server_default="0"),
    Column("lease_owner", Text),
    Column("lease_until", DateTime(timezone=True)),
    Column("not_before", DateTime(timezone=True)),
    Column("verify_tries", SmallInteger, nullable=False, server_default="0"),
    Column("failure_class", Text),
    Column("reason", Text),
    _now("created"),
    _now("changed"),
    UniqueConstraint("group_id", "member"),
    _one_of("state", RolloutState),
    _one_of("failure_class", FailureClass),
    Index(
        "rollouts_unfinished", "run_id", "state", postgresql_where=text("state NOT IN ('verified', 'lost')")
    ),
    comment="One try of a task. A lease is (lease_owner, lease_epoch, lease_until); every re-lease raises the epoch.",
    # A heartbeat changes no index, so lease_until has none; a row that changes every few seconds finds room on its page.
    postgresql_with={"fillfactor": "80", **_CHURNS},
)

attempts = Table(
    "attempts",
    metadata,
    Column("run_id", Integer, nullable=False),
    Column("rollout_id", BigInteger, ForeignKey("rollouts.rollout_id"), nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("runner", Text),
    Column("scaffold", Text),
    Column("scaffold_version", Text),
    Column("scaffold_sha", Text),
    _now("started"),
    _time("ended"),
    Column("failure_class", Text),
    Column("reason", Text),
    Column("steps", Integer),
    Column("last_idx", Integer),
    Column("digest", LargeBinary),
    Column("answer", Text),
    Column("agent_s", REAL),
    Column("queued_s", REAL),
    Column("log", Text),
    Column("resumable", Boolean, nullable=False, server_default="false"),  # as its runner reported the end
    PrimaryKeyConstraint("rollout_id", "attempt"),
    _one_of("failure_class", FailureClass),
    Index("attempts_ended", "run_id", "ended", postgresql_where=text("ended IS NOT NULL")),
    comment="An infrastructure try of a rollout, 1-based; steps, last_idx and digest are what its sealed session announced.",
)

resumes = Table(
    "resumes",
    metadata,
    _run(),
    Column("rollout_id", BigInteger, ForeignKey("rollouts.rollout_id"), nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("given_back", Boolean, nullable=False),
    Column("replay", Text),
    Column("replayed", Integer),
    _now("at"),
    PrimaryKeyConstraint("rollout_id", "epoch"),
    CheckConstraint("steps > 0", name="steps"),
    _one_of("replay", Replay),
    Index("resumes_at", "run_id", "at"),
    comment="An attempt that goes on under the lease of `epoch`: its `steps` recorded steps are replayed, then generation goes on. "
    "reason: what ended the lease before; replay and replayed: what became of it (null: under way).",
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("run_id", Integer, nullable=False),
    Column("rollout_id", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("mode", Integer, nullable=False),
    Column("body", LargeBinary),
    PrimaryKeyConstraint("rollout_id", "attempt", "path"),
    comment="Files that cross from the agent's sandbox to verification; body null = deleted by the agent.",
)

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
    _one_of("state", BatchState),
    CheckConstraint("state NOT IN ('closed', 'committed') OR digest IS NOT NULL", name="digest"),
    Index("batches_live", "run_id", "batch_no", unique=True, postgresql_where=text("state <> 'voided'")),
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
    postgresql_with={"fillfactor": "70", **_CHURNS},
)

_LETTER = "coalesce(run_id, 0)|left(subject, 256)|left(coalesce(msg_id, ''), 256)|sha256(body)"
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
