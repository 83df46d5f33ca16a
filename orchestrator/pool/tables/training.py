"""Training: batches, train steps and the versions that they published."""

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
    Column(
        "version",
        Integer,
        nullable=False,
        comment="+1 per published weights; 0: the weights that the run began with",
    ),
    Column("parent", Integer, comment="the version that it was trained from"),
    Column("batch_no", Integer, comment="the batch that it was trained on; null: none"),
    Column("path", Text, nullable=False, comment="directory of the weights"),
    Column(
        "manifest_sha",
        Text,
        nullable=False,
        comment="sha256 of its manifest, which lists every file with its sha256",
    ),
    Column(
        "superseded_by", Integer, comment="the version that a rewind published in its place; null: it counts"
    ),
    _now("at", "when it was published"),
    PrimaryKeyConstraint("run_id", "version"),
    comment="Published weights. A version number is never reused, even after a rewind.",
)

batches = Table(
    "batches",
    metadata,
    _id("batch_id", "the batch"),
    _run(),
    Column(
        "batch_no",
        Integer,
        nullable=False,
        comment="from 0 per run; reused after a rewind, so unique only among rows that are not voided",
    ),
    Column(
        "state",
        Text,
        nullable=False,
        server_default=BatchState.OPEN,
        comment="open (takes groups) → closed (digest fixed) → committed; or voided by a rewind",
    ),
    Column(
        "size", SmallInteger, nullable=False, comment="groups in it; while open, groups that it is to take"
    ),
    Column(
        "digest",
        LargeBinary,
        comment="sha256 over its groups, rollouts and pinned rewards; fixed when it closes",
    ),
    Column("version", Integer, comment="the policy version that it published; null: none (yet)"),
    _now("opened", "when its first group was taken"),
    _time("closed", "when it was full"),
    _time("committed", "when its train steps, version and groups were committed"),
    Column("groups_so_far", BigInteger, comment="groups of it and of every committed batch before it"),
    Column(
        "void_detail",
        Text,
        comment="of a quarantined batch: what was wrong with it, in the trainer's words; for other voided batches see transitions.reason",
    ),
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
    Column(
        "batch_id",
        BigInteger,
        ForeignKey("batches.batch_id"),
        nullable=False,
        comment="the batch that took it",
    ),
    Column("pos", SmallInteger, nullable=False, comment="order of taking, 0 and up"),
    Column(
        "group_id",
        BigInteger,
        ForeignKey("groups.group_id"),
        nullable=False,
        comment="the group that was taken",
    ),
    Column(
        "voided",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="true: a rewind undid the batch, or the group was put aside; it may be taken again",
    ),
    _now("taken", "when"),
    PrimaryKeyConstraint("batch_id", "pos"),
    Index("batch_items_once", "group_id", unique=True, postgresql_where=text("NOT voided")),
    comment="Each take is a row and moves the window. A group is in at most one batch that is not voided.",
)

batch_rollouts = Table(
    "batch_rollouts",
    metadata,
    Column(
        "batch_id",
        BigInteger,
        ForeignKey("batches.batch_id"),
        nullable=False,
        comment="the batch that trains it",
    ),
    Column("group_id", BigInteger, nullable=False, comment="its group"),
    Column(
        "rollout_id", BigInteger, ForeignKey("rollouts.rollout_id"), nullable=False, comment="the rollout"
    ),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt that is trained"),
    Column(
        "reward_revision",
        Integer,
        nullable=False,
        comment="the revision of its reward that is trained, whatever comes later",
    ),
    Column("baseline", Float, nullable=False, comment="taken off the returns"),
    Column("divisor", Float, nullable=False, comment="the difference is divided by it"),
    Column("advantage", Float, nullable=False, comment="(return - baseline) / divisor at the first step"),
    PrimaryKeyConstraint("batch_id", "rollout_id"),
    Index(None, "rollout_id"),
    comment="The rollouts of a taken group: reward revision, baseline, divisor and the first step's advantage pinned.",
)

trained_steps = Table(
    "trained_steps",
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
        "batch_id",
        BigInteger,
        nullable=False,
        comment="the batch that trained it; another one may have after a rewind",
    ),
    Column("part", SmallInteger, nullable=False, comment="which of its batch's train steps, 0 and up"),
    Column(
        "logprobs",
        LargeBinary,
        nullable=False,
        comment="little-endian float32 of each action token, after temperature; NaN: the token has train weight 0",
    ),
    PrimaryKeyConstraint("run_id", "rollout_id", "attempt", "idx", "batch_id"),
    CheckConstraint("part >= 0", name="part"),
    CheckConstraint("length(logprobs) > 0 AND length(logprobs) % 4 = 0", name="logprobs"),
    comment="Trainer logprobs of a step that was trained: of its action tokens, as the forward pass of its train step gave them, before "
    "that step's update. Of voided batches too. None with trainer.keep_logprobs off. Immutable.",
    postgresql_partition_by="LIST (run_id)",
)

train_steps = Table(
    "train_steps",
    metadata,
    _run(),
    Column(
        "train_step",
        Integer,
        nullable=False,
        comment="1 and up per run; steps that a rewind undid keep their numbers, so after one the optimizer's count is lower",
    ),
    Column(
        "batch_id",
        BigInteger,
        ForeignKey("batches.batch_id"),
        nullable=False,
        comment="the batch that it belongs to",
    ),
    Column("part", SmallInteger, nullable=False, comment="0 to U - 1 in its batch"),
    Column(
        "metrics",
        JSONB,
        nullable=False,
        comment="loss, gradient_norm, clip_fraction, kl_k3, entropy, ess, merge_ratio, staleness (tokens by age), domains, seconds, …",
    ),
    _now("at", "when its batch was committed"),
    PrimaryKeyConstraint("run_id", "train_step", "batch_id"),
    UniqueConstraint("batch_id", "part"),
    comment="One optimizer step, written in its batch's commit, with its metrics.",
)
