"""From a task to its tries: groups, rollouts, attempts and how they went on, what an attempt leaves behind."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
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
from sqlalchemy.dialects.postgresql import JSONB, REAL

from orchestrator.contracts.states import FailureClass, GroupState, Purpose, Replay, RolloutState
from orchestrator.pool.columns import CHURNS, metadata
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import moment as _time
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

_OPEN = text("NOT done")
_OF_KIND = text("state = 'accepted' AND difficulty IS NOT NULL")
_OTHER = text("state = 'accepted' AND purpose <> 'train'")

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
    postgresql_with={"fillfactor": "80", **CHURNS},
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
