"""How far the tasks of a run are trusted."""

from sqlalchemy import Column, LargeBinary, PrimaryKeyConstraint, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.contracts.vetting import Level
from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import one_of as _one_of
from orchestrator.pool.columns import run as _run

vettings = Table(
    "vettings",
    metadata,
    _run(),
    Column("sha", LargeBinary, nullable=False, comment="content hash of the task, as in tasks.sha"),
    Column(
        "level",
        Text,
        nullable=False,
        comment="none | well-formed | builds | controls-hold | vetted: the highest reached",
    ),
    Column("times", SmallInteger, nullable=False, comment="runs of each control"),
    Column("provider", Text, nullable=False, comment="the sandboxes in which it was vetted"),
    Column("version", SmallInteger, nullable=False, comment="of the controls; older ones do not count"),
    Column(
        "report",
        JSONB(none_as_null=True),
        comment="controls and findings; null: the level came with the task's message",
    ),
    _now("at", "when it was first vetted for this run"),
    PrimaryKeyConstraint("run_id", "sha"),
    _one_of("level", Level),
    comment="Levels of tasks by content hash, from penstock tasks vet: tasks.require asks for one. A changed byte is another task.",
)
