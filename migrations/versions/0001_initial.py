"""The data pool: tables, functions, views, triggers and roles.

Revision: 0001.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


SQL = Path(__file__).resolve().parents[1] / "sql"


def _script(name: str) -> None:
    """Run a file of statements separated by lines of `--;`."""
    for statement in (SQL / name).read_text().split("\n--;\n"):
        # exec_driver_sql: colons in the SQL are casts, not parameters.
        op.get_bind().exec_driver_sql(statement)


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("mode", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("rollout_id", "attempt", "path", name=op.f("artifacts_pkey")),
        comment="Files that cross from the agent's sandbox to verification; body null = deleted by the agent.",
    )
    op.create_table(
        "dead_letters",
        sa.Column("dead_letter_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("schema", sa.Text(), nullable=True),
        sa.Column("msg_id", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("deliveries", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("dead_letter_id", name=op.f("dead_letters_pkey")),
        comment="Messages that could not be used, whole, with the reason.",
    )
    op.create_table(
        "messages",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("appended", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reply", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx", name=op.f("messages_pkey")),
        comment="A reading of a step: the messages that its request added, and the parsed action. The ids are the truth.",
    )
    op.create_table(
        "prompts",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("sha", sa.LargeBinary(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("ids", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("length(ids) = 4 * n", name=op.f("prompts_ids")),
        sa.CheckConstraint("length(sha) = 32", name=op.f("prompts_sha")),
        sa.PrimaryKeyConstraint("run_id", "sha", name=op.f("prompts_pkey")),
        comment="Root contexts, content-addressed: shared by the members of a group and by retries.",
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("config", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("name ~ '^[a-z0-9_-]{1,32}$'", name=op.f("runs_name")),
        sa.CheckConstraint("state IN ('active', 'ending', 'ended')", name=op.f("runs_state")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("runs_pkey")),
        sa.UniqueConstraint("name", name=op.f("runs_name_key")),
        comment="One training run; nothing refers across runs. config is the resolved configuration.",
    )
    op.create_table(
        "step_marks",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint(
            "run_id", "rollout_id", "attempt", "idx", "reason", name=op.f("step_marks_pkey")
        ),
        comment="Append-only: a marked step (undelivered, auxiliary, version_suspect) has train weight 0.",
    )
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("parent_idx", sa.Integer(), nullable=True),
        sa.Column("root_idx", sa.Integer(), nullable=False),
        sa.Column("prompt_sha", sa.LargeBinary(), nullable=True),
        sa.Column("keep_len", sa.Integer(), nullable=False),
        sa.Column("state_len", sa.Integer(), nullable=False),
        sa.Column("full_len", sa.Integer(), nullable=False),
        sa.Column("v_lo", sa.Integer(), nullable=False),
        sa.Column("v_hi", sa.Integer(), nullable=False),
        sa.Column("spans", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("sampling_id", sa.BigInteger(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("finish", sa.Text(), nullable=False),
        sa.Column("parse", sa.Text(), nullable=False),
        sa.Column("t_queue", sa.REAL(), nullable=True),
        sa.Column("t_first", sa.REAL(), nullable=True),
        sa.Column("t_gen", sa.REAL(), nullable=True),
        sa.Column("t_gap", sa.REAL(), nullable=True),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("request_digest", sa.LargeBinary(), nullable=True),
        sa.Column("branch_reason", sa.Text(), nullable=True),
        sa.Column("chain_sha", sa.LargeBinary(), nullable=False),
        sa.Column("row_sha", sa.LargeBinary(), nullable=False),
        sa.Column("delta", sa.LargeBinary(), nullable=False),
        sa.Column("action", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("(kind = 'root') = (parent_idx IS NULL)", name=op.f("steps_parent")),
        sa.CheckConstraint("kind IN ('root', 'continues', 'rewrites')", name=op.f("steps_kind")),
        sa.CheckConstraint(
            "keep_len = 0 OR parent_idx IS NOT NULL OR prompt_sha IS NOT NULL", name=op.f("steps_keep")
        ),
        sa.CheckConstraint("length(action) = 4 * (full_len - state_len)", name=op.f("steps_action")),
        sa.CheckConstraint("length(chain_sha) = 32 AND length(row_sha) = 32", name=op.f("steps_shas")),
        sa.CheckConstraint("length(delta) = 4 * (state_len - keep_len)", name=op.f("steps_delta")),
        sa.CheckConstraint("length(logprobs) = length(action)", name=op.f("steps_logprobs")),
        sa.CheckConstraint("parent_idx IS NULL OR prompt_sha IS NULL", name=op.f("steps_one_origin")),
        sa.PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx", name=op.f("steps_pkey")),
        comment="The trajectory store: a tree of deltas. full = state + action; state = parent.full[:keep_len] + delta. Immutable.",
        postgresql_partition_by="LIST (run_id)",
    )
    op.create_table(
        "tool_calls",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("call", sa.SmallInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("start_s", sa.REAL(), nullable=True),
        sa.Column("end_s", sa.REAL(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(
            "run_id", "rollout_id", "attempt", "idx", "call", name=op.f("tool_calls_pkey")
        ),
        comment="Tool executions of white-box scaffolds, in seconds since the attempt's start.",
    )
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("batch_no", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), server_default="open", nullable=False),
        sa.Column("size", sa.SmallInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column(
            "opened", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("closed", sa.DateTime(timezone=True), nullable=True),
        sa.Column("committed", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('open', 'closed', 'committed', 'voided')", name=op.f("batches_state")),
        sa.CheckConstraint(
            "state NOT IN ('closed', 'committed') OR digest IS NOT NULL", name=op.f("batches_digest")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("batches_run_id_fkey")),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("batches_pkey")),
        comment="One claim of P groups: U >= 1 train steps, one commit, at most one publish.",
    )
    op.create_index(
        "batches_live",
        "batches",
        ["run_id", "batch_no"],
        unique=True,
        postgresql_where=sa.text("state <> 'voided'"),
    )
    op.create_table(
        "counters",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("counters_run_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("counters_pkey")),
        comment="Counted no-ops and refusals: stale epochs, duplicates, conflicts.",
    )
    op.create_table(
        "outbox",
        sa.Column("outbox_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("schema", sa.Text(), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("outbox_run_id_fkey")),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("outbox_pkey")),
        comment="Messages that a committed state change owes to the bus; a row is deleted once its publish is acknowledged.",
    )
    op.create_table(
        "policy_versions",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("batch_no", sa.Integer(), nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("manifest_sha", sa.Text(), nullable=False),
        sa.Column("superseded_by", sa.Integer(), nullable=True),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("policy_versions_run_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("policy_versions_pkey")),
        comment="Published weights. A version number is never used twice, not after a rewind either.",
    )
    op.create_table(
        "queue",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("next_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("floor_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("intake_open", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("admission_open", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("admission_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("queue_run_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("queue_pkey")),
        comment="One row per run, locked for every claim and dispatch. No open position lies below floor_seq.",
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "rewards",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("verdict_revision", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("performance", sa.Float(), nullable=False),
        sa.Column("speed", sa.Float(), nullable=False),
        sa.Column("process", sa.Float(), nullable=False),
        sa.Column("alpha", sa.Float(), nullable=False),
        sa.Column("beta", sa.Float(), nullable=False),
        sa.Column("total", sa.Float(), nullable=False),
        sa.Column("t_agent", sa.Float(), nullable=True),
        sa.Column("t_base", sa.Float(), nullable=True),
        sa.Column("baseline", sa.Float(), nullable=True),
        sa.Column("divisor", sa.Float(), nullable=True),
        sa.Column("advantage", sa.Float(), nullable=True),
        sa.Column("per_step", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("rewards_run_id_fkey")),
        sa.PrimaryKeyConstraint("rollout_id", "revision", name=op.f("rewards_pkey")),
        comment="Append-only composite rewards: total = performance + beta*speed + alpha*process; "
        "per_step holds every part and each step's advantage.",
    )
    op.create_table(
        "rollout_servers",
        sa.Column("server_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.Text(), server_default="starting", nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column(
            "changed", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint(
            "state IN ('starting', 'syncing', 'ready', 'failed')", name=op.f("rollout_servers_state")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("rollout_servers_run_id_fkey")),
        sa.PrimaryKeyConstraint("server_id", name=op.f("rollout_servers_pkey")),
        sa.UniqueConstraint("run_id", "url", name=op.f("rollout_servers_run_id_url_key")),
        comment="Rollout servers of a run, owned by one gateway at a time; version is what serves after a passed canary.",
    )
    op.create_table(
        "sampling",
        sa.Column("sampling_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("sha", sa.LargeBinary(), nullable=False),
        sa.Column("params", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("sampling_run_id_fkey")),
        sa.PrimaryKeyConstraint("sampling_id", name=op.f("sampling_pkey")),
        sa.UniqueConstraint("run_id", "sha", name=op.f("sampling_run_id_sha_key")),
        comment="Distinct sets of sampling parameters; sha is over the canonical JSON.",
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("budget", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), server_default="open", nullable=False),
        sa.Column("expires", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seal", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("state IN ('open', 'sealed', 'closed')", name=op.f("sessions_state")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("sessions_run_id_fkey")),
        sa.PrimaryKeyConstraint("session_id", name=op.f("sessions_pkey")),
        sa.UniqueConstraint("token_hash", name=op.f("sessions_token_hash_key")),
        comment="Capabilities of harnesses at the gateway; only the sha256 of a token is stored.",
    )
    op.create_index(op.f("sessions_rollout_id_attempt"), "sessions", ["rollout_id", "attempt"], unique=False)
    op.create_table(
        "submissions",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("submission", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("status IN ('accepted', 'rejected')", name=op.f("submissions_status")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("submissions_run_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", "submission", name=op.f("submissions_pkey")),
        comment="The answer to every task message: the row behind the accepted.<run>.<submission> notice.",
    )
    op.create_table(
        "tasks",
        sa.Column("task_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("sha", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("tasks_run_id_fkey")),
        sa.PrimaryKeyConstraint("task_id", name=op.f("tasks_pkey")),
        sa.UniqueConstraint("run_id", "sha", name=op.f("tasks_run_id_sha_key")),
        comment="Task directories as packed JSON, content-addressed per run.",
    )
    op.create_table(
        "transitions",
        sa.Column("transition_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("entity_id", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("kind IN ('group', 'rollout', 'batch', 'run')", name=op.f("transitions_kind")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("transitions_run_id_fkey")),
        sa.PrimaryKeyConstraint("transition_id", name=op.f("transitions_pkey")),
        comment="The history of every state change, written in the transaction that made it.",
    )
    op.create_index(op.f("transitions_kind_entity_id"), "transitions", ["kind", "entity_id"], unique=False)
    op.create_table(
        "verdicts",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=False),
        sa.Column("tests", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("log", sa.Text(), nullable=True),
        sa.Column("verify_s", sa.REAL(), nullable=True),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("reward >= 0 AND reward <= 1", name=op.f("verdicts_reward")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("verdicts_run_id_fkey")),
        sa.PrimaryKeyConstraint("rollout_id", "revision", name=op.f("verdicts_pkey")),
        comment="Append-only verifier results; reward in [0, 1] is the performance part.",
    )
    op.create_table(
        "groups",
        sa.Column("group_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("submission", sa.Text(), nullable=False),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), server_default="train", nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("scaffold", sa.Text(), nullable=False),
        sa.Column("size", sa.SmallInteger(), nullable=False),
        sa.Column("pinned_version", sa.Integer(), nullable=True),
        sa.Column("sampling", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), server_default="accepted", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column(
            "done",
            sa.Boolean(),
            sa.Computed("state IN ('trained', 'scored', 'filtered', 'dead')", persisted=True),
            nullable=False,
        ),
        sa.Column(
            "created", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("dispatched", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ready", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("purpose = 'train' OR seq IS NULL", name=op.f("groups_seq_only_train")),
        sa.CheckConstraint("purpose IN ('train', 'eval', 'record')", name=op.f("groups_purpose")),
        sa.CheckConstraint(
            "state IN ('accepted', 'dispatched', 'ready', 'taken', 'trained', 'scored', 'filtered', 'dead')",
            name=op.f("groups_state"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('filtered', 'dead') OR reason IS NOT NULL", name=op.f("groups_reason_given")
        ),
        sa.CheckConstraint("purpose <> 'train' OR sampling IS NULL", name=op.f("groups_sampling_not_train")),
        sa.CheckConstraint("size >= 1", name=op.f("groups_size")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("groups_run_id_fkey")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("groups_task_id_fkey")),
        sa.PrimaryKeyConstraint("group_id", name=op.f("groups_pkey")),
        sa.UniqueConstraint("run_id", "seq", name=op.f("groups_run_id_seq_key")),
        sa.UniqueConstraint("run_id", "submission", name=op.f("groups_run_id_submission_key")),
        comment="One accepted submission = one group = one terminal state. seq is the dispatch order of train groups.",
        postgresql_with={"fillfactor": "85"},
    )
    op.create_index(
        "groups_accepted",
        "groups",
        ["run_id", "domain", "group_id"],
        unique=False,
        postgresql_where=sa.text("state = 'accepted'"),
    )
    op.create_index(
        "groups_open",
        "groups",
        ["run_id", "seq"],
        unique=False,
        postgresql_include=["state", "group_id"],
        postgresql_where=sa.text("NOT done"),
    )
    op.create_table(
        "train_steps",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("train_step", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.SmallInteger(), nullable=False),
        sa.Column("metrics", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.batch_id"], name=op.f("train_steps_batch_id_fkey")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("train_steps_run_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", "train_step", "batch_id", name=op.f("train_steps_pkey")),
        sa.UniqueConstraint("batch_id", "part", name=op.f("train_steps_batch_id_part_key")),
        comment="One optimizer step, written in its batch's commit, with its metrics.",
    )
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("pos", sa.SmallInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("voided", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "taken", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.batch_id"], name=op.f("batch_items_batch_id_fkey")),
        sa.ForeignKeyConstraint(["group_id"], ["groups.group_id"], name=op.f("batch_items_group_id_fkey")),
        sa.PrimaryKeyConstraint("batch_id", "pos", name=op.f("batch_items_pkey")),
        comment="Each take is a row and moves the window. A group is in at most one batch that is not voided.",
    )
    op.create_index(
        "batch_items_once", "batch_items", ["group_id"], unique=True, postgresql_where=sa.text("NOT voided")
    )
    op.create_table(
        "rollouts",
        sa.Column("rollout_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("member", sa.SmallInteger(), nullable=False),
        sa.Column("pool", sa.Text(), server_default="default", nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), server_default="1", nullable=False),
        sa.Column("state", sa.Text(), server_default="waiting", nullable=False),
        sa.Column("lease_epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("verify_tries", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("failure_class", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column(
            "created", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "changed", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint(
            "failure_class IN ('completed', 'policy_failure', 'timeout', 'infra_failure', 'verifier_failure', 'poison', 'cancelled')",
            name=op.f("rollouts_failure_class"),
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'queued', 'running', 'reported', 'finished', 'verifying', 'verified', 'lost')",
            name=op.f("rollouts_state"),
        ),
        sa.ForeignKeyConstraint(["group_id"], ["groups.group_id"], name=op.f("rollouts_group_id_fkey")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("rollouts_run_id_fkey")),
        sa.PrimaryKeyConstraint("rollout_id", name=op.f("rollouts_pkey")),
        sa.UniqueConstraint("group_id", "member", name=op.f("rollouts_group_id_member_key")),
        comment="One try of a task. A lease is (lease_owner, lease_epoch, lease_until); every re-lease raises the epoch.",
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "rollouts_lease",
        "rollouts",
        ["lease_until"],
        unique=False,
        postgresql_where=sa.text("lease_until IS NOT NULL"),
    )
    op.create_index(
        "rollouts_unfinished",
        "rollouts",
        ["run_id", "state"],
        unique=False,
        postgresql_where=sa.text("state NOT IN ('verified', 'lost')"),
    )
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("runner", sa.Text(), nullable=True),
        sa.Column("scaffold", sa.Text(), nullable=True),
        sa.Column("scaffold_version", sa.Text(), nullable=True),
        sa.Column("scaffold_sha", sa.Text(), nullable=True),
        sa.Column(
            "started", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure_class", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=True),
        sa.Column("last_idx", sa.Integer(), nullable=True),
        sa.Column("digest", sa.LargeBinary(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("agent_s", sa.REAL(), nullable=True),
        sa.Column("queued_s", sa.REAL(), nullable=True),
        sa.Column("log", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "failure_class IN ('completed', 'policy_failure', 'timeout', 'infra_failure', 'verifier_failure', 'poison', 'cancelled')",
            name=op.f("attempts_failure_class"),
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.rollout_id"], name=op.f("attempts_rollout_id_fkey")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "attempt", name=op.f("attempts_pkey")),
        comment="An infrastructure try of a rollout, 1-based; steps, last_idx and digest are what its sealed session announced.",
    )
    op.create_table(
        "batch_rollouts",
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("reward_revision", sa.Integer(), nullable=False),
        sa.Column("baseline", sa.Float(), nullable=False),
        sa.Column("divisor", sa.Float(), nullable=False),
        sa.Column("advantage", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.batch_id"], name=op.f("batch_rollouts_batch_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.rollout_id"], name=op.f("batch_rollouts_rollout_id_fkey")
        ),
        sa.PrimaryKeyConstraint("batch_id", "rollout_id", name=op.f("batch_rollouts_pkey")),
        comment="The rollouts of a taken group: reward revision, baseline, divisor and the first step's advantage pinned.",
    )
    _script("0001_roles.sql")
    _script("0001_functions.sql")
    _script("0001_views.sql")
    op.execute(
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer"
    )


def downgrade() -> None:
    for view in (
        "staleness",
        "token_lineage",
        "window_state",
        "reward_breakdown",
        "latest_rewards",
        "step_tokens",
        "trajectory",
    ):
        op.execute(f"DROP VIEW {view}")
    op.drop_table("batch_rollouts")
    op.drop_table("attempts")
    op.drop_index(
        "rollouts_unfinished",
        table_name="rollouts",
        postgresql_where=sa.text("state NOT IN ('verified', 'lost')"),
    )
    op.drop_index(
        "rollouts_lease", table_name="rollouts", postgresql_where=sa.text("lease_until IS NOT NULL")
    )
    op.drop_table("rollouts")
    op.drop_index("batch_items_once", table_name="batch_items", postgresql_where=sa.text("NOT voided"))
    op.drop_table("batch_items")
    op.drop_table("train_steps")
    op.drop_index(
        "groups_open",
        table_name="groups",
        postgresql_include=["state", "group_id"],
        postgresql_where=sa.text("NOT done"),
    )
    op.drop_index("groups_accepted", table_name="groups", postgresql_where=sa.text("state = 'accepted'"))
    op.drop_table("groups")
    op.drop_table("verdicts")
    op.drop_index(op.f("transitions_kind_entity_id"), table_name="transitions")
    op.drop_table("transitions")
    op.drop_table("tasks")
    op.drop_table("submissions")
    op.drop_index(op.f("sessions_rollout_id_attempt"), table_name="sessions")
    op.drop_table("sessions")
    op.drop_table("sampling")
    op.drop_table("rollout_servers")
    op.drop_table("rewards")
    op.drop_table("queue")
    op.drop_table("policy_versions")
    op.drop_table("outbox")
    op.drop_table("counters")
    op.drop_index("batches_live", table_name="batches", postgresql_where=sa.text("state <> 'voided'"))
    op.drop_table("batches")
    op.drop_table("tool_calls")
    op.drop_table("steps")
    op.drop_table("step_marks")
    op.drop_table("runs")
    op.drop_table("prompts")
    op.drop_table("messages")
    op.drop_table("dead_letters")
    op.drop_table("artifacts")
    for function in (
        "step_logprobs(int, bigint, int, int)",
        "step_ids(int, bigint, int, int)",
        "step_full(int, bigint, int, int)",
        "broken_steps(int, bigint, int)",
        "chain_of(bytea, int, bytea, bytea)",
        "f4(bytea)",
        "i4(bytea)",
        "open_partition(int)",
        "count_event(int, text, bigint)",
        "refuse_change()",
    ):
        op.execute(f"DROP FUNCTION {function}")
    # The roles stay: other databases of the server may use them.
