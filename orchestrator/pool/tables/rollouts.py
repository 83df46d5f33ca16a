"""From a task to its tries: groups, rollouts, attempts, their resumes, and the artifacts of an attempt."""

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
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL

from orchestrator.contracts.states import FailureClass, GroupState, Purpose, Replay, RolloutState
from orchestrator.pool.columns import CHURNS, metadata
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import moment as _time
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

SPENT = "seconds of its runner under its last lease, by phase: session, sandbox, agent, changes, seal, other; null: not reported"
QUEUED = (
    "seconds in which it waited for gateway, rollout server or sandbox; calls that waited at once count once"
)
GENERATION = "seconds in which at least one completion of it was generated, replayed ones included; null: unknown, or older than this column"
WAITING = "the part of queued_s after its sandbox was there: a call waited, none was generated, no tool ran; null: as generation_s"
SYSTEM = "what its sandbox ran on: sha256: and the digest of an image, or host: and the distribution of the runner's machine; null: not known"

_OPEN = text("NOT done")
_OF_KIND = text("state = 'accepted' AND difficulty IS NOT NULL")
_DEAD = text("state = 'dead'")
_OTHER = text("state = 'accepted' AND purpose <> 'train'")

groups = Table(
    "groups",
    metadata,
    _id("group_id", "the group; g<group_id> in `penstock dead`"),
    _run(),
    Column(
        "submission",
        Text,
        nullable=False,
        comment="id of the task message that it came from, unique in its run",
    ),
    Column(
        "task_id",
        BigInteger,
        ForeignKey("tasks.task_id"),
        nullable=False,
        comment="the task that all members try",
    ),
    Column(
        "domain", Text, nullable=False, comment="what its queue share is counted for: coding, reasoning, …"
    ),
    Column(
        "purpose",
        Text,
        nullable=False,
        server_default=Purpose.TRAIN,
        comment="train | eval | record; only train groups get a queue position",
    ),
    Column("label", Text, comment="name that the publisher gave to a set of submissions"),
    Column("scaffold", Text, nullable=False, comment="the agent that tries it"),
    Column("size", SmallInteger, nullable=False, comment="G: rollouts in the group"),
    Column(
        "pinned_version",
        Integer,
        comment="the one policy version of an evaluation; null: the version being served",
    ),
    Column(
        "sampling",
        JSONB(none_as_null=True),
        comment="sampling parameters of an evaluation or recording that differ from the run's",
    ),
    Column(
        "seq",
        BigInteger,
        comment="queue position: the order of dispatch; null until dispatched, and always for eval and record",
    ),
    Column("difficulty", Text, comment="of its task, where stages follow one another; null elsewhere"),
    Column("stage", SmallInteger, comment="number of the stage that it was dispatched in; null: the first"),
    Column(
        "state",
        Text,
        nullable=False,
        server_default=GroupState.ACCEPTED,
        comment="accepted → dispatched → ready → taken → trained; or scored (eval, record), filtered, dead",
    ),
    Column("reason", Text, comment="why it was filtered (zero_signal, too_few, run_ended, …) or is dead"),
    Column(
        "done",
        Boolean,
        Computed("state IN ('trained', 'scored', 'filtered', 'dead')", persisted=True),
        nullable=False,
        comment="true in a terminal state: its position no longer blocks the window",
    ),
    _now("created", "when its submission was accepted"),
    _time("dispatched", "when it got its position and its rollouts were queued"),
    _time("ready", "when its last member was verified"),
    _time("ended", "when it came to its terminal state"),
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
    Index("groups_dead", "run_id", "group_id", postgresql_where=_DEAD),
    Index("groups_other", "run_id", "group_id", postgresql_where=_OTHER),
    Index(
        "groups_eval",
        "run_id",
        text("coalesce(label, '')"),
        "pinned_version",
        postgresql_include=["label", "size", "done", "group_id", "ended"],
        postgresql_where=text("purpose = 'eval'"),
    ),
    comment="One accepted submission = one group = one terminal state. seq is the dispatch order of train groups.",
    postgresql_with={"fillfactor": "85"},
)

rollouts = Table(
    "rollouts",
    metadata,
    _id("rollout_id", "the rollout: one try of its group's task"),
    _run(),
    Column(
        "group_id",
        BigInteger,
        ForeignKey("groups.group_id"),
        nullable=False,
        comment="the group that it is a member of",
    ),
    Column("member", SmallInteger, nullable=False, comment="0 to size - 1 in its group"),
    Column("pool", Text, nullable=False, server_default="default", comment="runners of this pool take it"),
    Column("seed", BigInteger, nullable=False, comment="seed of its sampling"),
    Column(
        "attempt",
        SmallInteger,
        nullable=False,
        server_default="1",
        comment="the attempt that counts, 1 and up",
    ),
    Column(
        "state",
        Text,
        nullable=False,
        server_default=RolloutState.WAITING,
        comment="waiting → queued → running → reported → finished → verifying → verified; or lost",
    ),
    Column(
        "lease_epoch",
        Integer,
        nullable=False,
        server_default="0",
        comment="raised by every lease; messages with an older epoch are refused",
    ),
    Column("lease_owner", Text, comment="host:directory:name of the worker that holds it"),
    Column(
        "lease_until", DateTime(timezone=True), comment="when the lease ends unless a heartbeat renews it"
    ),
    Column(
        "graced_until",
        DateTime(timezone=True),
        comment="the end that a reaper gave the lease after an absence: no second one while lease_until is still this",
    ),
    Column("not_before", DateTime(timezone=True), comment="a retry waits until then"),
    Column(
        "verify_tries",
        SmallInteger,
        nullable=False,
        server_default="0",
        comment="verifications of this attempt that failed",
    ),
    Column("failure_class", Text, comment="how the last attempt ended; null until then"),
    Column("reason", Text, comment="the failure in words"),
    _now("created", "when its group was accepted"),
    _now("changed", "when its state last changed"),
    UniqueConstraint("group_id", "member"),
    _one_of("state", RolloutState),
    _one_of("failure_class", FailureClass),
    Index(
        "rollouts_unfinished", "run_id", "state", postgresql_where=text("state NOT IN ('verified', 'lost')")
    ),
    comment="One try of a task. A lease is (lease_owner, lease_epoch, lease_until); every re-lease raises the epoch.",
    # A heartbeat changes no index, so lease_until has none; a frequently updated row finds room on its page.
    postgresql_with={"fillfactor": "80", **CHURNS},
)

attempts = Table(
    "attempts",
    metadata,
    Column("run_id", Integer, nullable=False, comment="the run that the row belongs to"),
    Column(
        "rollout_id",
        BigInteger,
        ForeignKey("rollouts.rollout_id"),
        nullable=False,
        comment="the rollout that was tried",
    ),
    Column("attempt", SmallInteger, nullable=False, comment="1 and up"),
    Column("epoch", Integer, nullable=False, comment="lease epoch that it ran under last"),
    Column("runner", Text, comment="who ran it: host:directory:name"),
    Column("scaffold", Text, comment="the agent that tried"),
    Column("scaffold_version", Text, comment="the scaffold's declared version"),
    Column("scaffold_sha", Text, comment="sha256 over the scaffold's files"),
    _now("started", "when it was leased"),
    _time("ended", "when its result came in, or its lease was lost; null: it is under way"),
    Column(
        "failure_class",
        Text,
        comment="completed | policy_failure | timeout | infra_failure | verifier_failure | poison | cancelled",
    ),
    Column("reason", Text, comment="the failure in words"),
    Column("steps", Integer, comment="recorded steps that its sealed session announced"),
    Column("last_idx", Integer, comment="idx of the last of them; -1: none"),
    Column(
        "digest",
        LargeBinary,
        comment="sha256 over all chain_sha in idx order: what the data pool must hold before it counts",
    ),
    Column("answer", Text, comment="the agent's final answer, where its scaffold gives one"),
    Column("agent_s", REAL, comment="seconds that the agent took, without platform queueing"),
    Column("queued_s", REAL, comment=QUEUED),
    Column("log", Text, comment="what the scaffold printed, cut to a limit"),
    Column("spent", JSONB(none_as_null=True), comment=SPENT),
    Column(
        "resumable",
        Boolean,
        nullable=False,
        server_default="false",
        comment="its runner reported that it can go on from the recorded steps",
    ),  # as its runner reported the end
    Column(
        "ungradable",
        Text,
        comment="why nothing that the agent left can be graded, so that its verdict is 0; null: it can",
    ),
    Column("generation_s", REAL, comment=GENERATION),
    Column("waiting_s", REAL, comment=WAITING),
    Column("system", Text, comment=SYSTEM),
    PrimaryKeyConstraint("rollout_id", "attempt"),
    _one_of("failure_class", FailureClass),
    Index("attempts_ended", "run_id", "ended", postgresql_where=text("ended IS NOT NULL")),
    comment="An infrastructure try of a rollout, 1-based; steps, last_idx and digest are what its sealed session announced.",
)

resumes = Table(
    "resumes",
    metadata,
    _run(),
    Column(
        "rollout_id",
        BigInteger,
        ForeignKey("rollouts.rollout_id"),
        nullable=False,
        comment="the rollout that goes on",
    ),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt that goes on"),
    Column("epoch", Integer, nullable=False, comment="the new lease epoch"),
    Column("steps", Integer, nullable=False, comment="recorded steps that are served again"),
    Column("reason", Text, nullable=False, comment="what ended the lease before"),
    Column(
        "given_back",
        Boolean,
        nullable=False,
        comment="true: its runner gave it back in order; false: its lease ran out",
    ),
    Column("replay", Text, comment="continued | diverged | interrupted; null: under way"),
    Column("replayed", Integer, comment="recorded steps that were requested again"),
    _now("at", "when, by the database's clock"),
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
    Column("run_id", Integer, nullable=False, comment="the run that the row belongs to"),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout that left it"),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt that left it"),
    Column("path", Text, nullable=False, comment="relative to the work directory; kind collected: absolute"),
    Column(
        "mode",
        Integer,
        nullable=False,
        comment="permission bits; kind collected: with the type of a link, a directory, or as of a character device a deletion",
    ),
    Column("body", LargeBinary, comment="the bytes, of a link its target; null: in blobs, or deleted"),
    Column(
        "kind",
        Text,
        nullable=False,
        server_default="file",
        comment="file | link | directory | collected | answer | behind: not copied",
    ),
    Column("why", Text, comment="why it was not copied"),
    Column(
        "step",
        SmallInteger,
        nullable=False,
        server_default="0",
        comment="of a task with several steps, the one after which it was copied, from 0",
    ),
    Column(
        "parts",
        ARRAY(LargeBinary),
        comment="sha256 of the blobs that hold a large file, in order; null: not in blobs",
    ),
    Column("size", BigInteger, comment="bytes of a file in blobs"),
    Index(
        "artifacts_once",
        "rollout_id",
        "attempt",
        "step",
        text(r"sha256(decode(replace(path, '\', '\\'), 'escape'))"),
        unique=True,
    ),
    comment="Files copied from the agent's sandbox to the verifier's; neither body nor parts: deleted by the agent.",
)
