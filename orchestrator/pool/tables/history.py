"""History and liveness: state changes, actions of people, counters, processes."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, PrimaryKeyConstraint, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.contracts.states import Entity
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import moment as _moment
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

transitions = Table(
    "transitions",
    metadata,
    _id(
        "transition_id",
        "grows with every change; a reader goes on from the last one that it saw, and looks a little back, since ids are given before commits",
    ),
    _run(),
    Column(
        "kind",
        Text,
        nullable=False,
        comment="what changed: group, rollout, batch, run or message (a dead letter)",
    ),
    Column(
        "entity_id",
        BigInteger,
        nullable=False,
        comment="group_id, rollout_id, batch_id, run_id or dead_letter_id, by kind",
    ),
    Column("seq", BigInteger, comment="queue position of a group, where it has one"),
    Column("from_state", Text, comment="null: the row was made"),
    Column("to_state", Text, nullable=False, comment="a state of the kind's own machine"),
    Column("epoch", Integer, comment="lease epoch of a rollout after the change"),
    Column("reason", Text, comment="why, in words for people; also who, where a person did it"),
    _now("at", "when, by the database's clock"),
    _one_of("kind", Entity),
    Index(None, "kind", "entity_id"),
    comment="The history of every state change, written in the transaction that made it.",
)

actions = Table(
    "actions",
    metadata,
    _id("action_id", "grows with every action"),
    _run(),
    _now("at", "when it was done, by the database's clock"),
    Column(
        "who",
        Text,
        nullable=False,
        comment="user@host of the process that received the command, and how it was given",
    ),
    Column(
        "what", Text, nullable=False, comment="pause, resume, cancel, reweigh, drop, retry, drain or undrain"
    ),
    Column("target", Text, nullable=False, comment="on what: queue, group 7, message 7"),
    Column("before", JSONB(none_as_null=True), comment="changed values before"),
    Column("after", JSONB(none_as_null=True), comment="changed values after"),
    Column("reason", Text, nullable=False, comment="why, in the person's own words"),
    Index(None, "run_id", "action_id"),
    comment="Operator actions, each written in the transaction that did it. Append-only.",
)

counters = Table(
    "counters",
    metadata,
    _run(),
    Column(
        "name",
        Text,
        nullable=False,
        comment="what is counted, for example steps_stale, results_stale, assignments_stale",
    ),
    Column("value", BigInteger, nullable=False, comment="how often it happened"),
    PrimaryKeyConstraint("run_id", "name"),
    comment="Counted no-ops and refusals: stale epochs, duplicates, conflicts.",
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "500"},
)

processes = Table(
    "processes",
    metadata,
    _run(),
    Column("host", Text, nullable=False, comment="name of the machine"),
    Column(
        "process",
        Text,
        nullable=False,
        comment="orchestrator, gateway, runner, verifier, trainer; a second runner has a name of its own",
    ),
    Column("pid", Integer, nullable=False, comment="process id on its host"),
    _now("started", "when the process with this pid first reported"),
    _now("last_seen", "when it last reported"),
    Column(
        "stopped",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="true: it reported that it ends",
    ),
    Column(
        "loops",
        JSONB,
        nullable=False,
        comment="what each loop works on and waits for; seconds since when (age_s), seconds without progress (stuck_s)",
    ),
    _moment("draining", "when the drain was requested; null: not draining"),
    Column(
        "holds",
        JSONB(none_as_null=True),
        comment="work left since the drain began: its own under self, calls by the URL of their server",
    ),
    Column(
        "code",
        Text,
        comment="what code it runs: 12 digits of a sha256 over the orchestrator's files; null: code from before there was this",
    ),
    PrimaryKeyConstraint("run_id", "host", "process"),
    comment="The processes of a run: when each last reported, and what its loops work on and wait for.",
    postgresql_with={"fillfactor": "50"},
)
