"""A run as a whole: its configuration, its queue, the received tasks and their answers."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.contracts.states import RunState, SubmissionStatus
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import moment as _time
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

runs = Table(
    "runs",
    metadata,
    Column(
        "run_id",
        Integer,
        Identity(always=False),
        primary_key=True,
        comment="the run; every other key carries it",
    ),
    Column("name", Text, nullable=False, unique=True, comment="as in its configuration, [run] name"),
    Column("state", Text, nullable=False, server_default=RunState.ACTIVE, comment="active | ending | ended"),
    Column(
        "config",
        JSONB,
        nullable=False,
        comment="the resolved configuration that the run began with, and keeps",
    ),
    _now("created", "when it began"),
    _time("ended", "when its last submission had reached a terminal state after its end was requested"),
    _time("pruned", "since then its steps, messages and prompts are dropped"),
    Column(
        "process_config",
        JSONB(none_as_null=True),
        comment="process keys in force at the newest start of an orchestrator of the run, by dotted key: only those that other runs' "
        "orchestrators and dashboards read, and none with secrets; null: no start wrote them",
    ),
    CheckConstraint("name ~ '^[a-z0-9_-]{1,32}$'", name="name"),
    _one_of("state", RunState),
    comment="One training run; nothing refers across runs. config is the resolved configuration.",
)

queue = Table(
    "queue",
    metadata,
    Column(
        "run_id",
        Integer,
        ForeignKey("runs.run_id"),
        primary_key=True,
        autoincrement=False,
        comment="the run whose queue this is",
    ),
    Column(
        "next_seq",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="the position that the next dispatched group gets",
    ),
    Column(
        "floor_seq",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="no open position lies below: where the search for the head begins",
    ),
    Column(
        "intake_open",
        Boolean,
        nullable=False,
        server_default=text("true"),
        comment="false: no more tasks are accepted",
    ),
    Column(
        "admission_open",
        Boolean,
        nullable=False,
        server_default=text("true"),
        comment="false: nothing is dispatched",
    ),
    Column("admission_reason", Text, comment="why admission is closed"),
    Column(
        "shares",
        JSONB(none_as_null=True),
        comment="weights of domains that a person set, {stage, domains}: they hold while that stage is on; null: as configured",
    ),
    comment="One row per run, locked for every claim and dispatch. No open position lies below floor_seq.",
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "500"},
)

tasks = Table(
    "tasks",
    metadata,
    _id("task_id", "the task; groups name it"),
    _run(),
    Column("sha", LargeBinary, nullable=False, comment="sha256 of the packed content"),
    Column("name", Text, nullable=False, comment="the task's own name"),
    Column("domain", Text, nullable=False, comment="what queue shares are counted for"),
    Column(
        "settings",
        JSONB,
        nullable=False,
        comment="task.toml, read: timeouts, resources, verifier, difficulty",
    ),
    Column("body", JSONB, nullable=False, comment="the whole task directory as packed JSON"),
    _now("created", "when it was first accepted"),
    UniqueConstraint("run_id", "sha"),
    comment="Task directories as packed JSON, content-addressed per run.",
)

submissions = Table(
    "submissions",
    metadata,
    _run(),
    Column("submission", Text, nullable=False, comment="id of a task message, unique in its run"),
    Column("status", Text, nullable=False, comment="accepted | rejected"),
    Column("reason", Text, comment="why it was rejected"),
    _now("at", "when it was answered"),
    PrimaryKeyConstraint("run_id", "submission"),
    _one_of("status", SubmissionStatus),
    comment="The answer to every task message: the row behind the accepted.<run>.<submission> notice.",
)
