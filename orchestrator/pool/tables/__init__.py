"""The declared schema of the data pool. `alembic upgrade head` must produce exactly this (a test compares them).

Conventions: every key carries run_id; token ids are little-endian int32 and logprobs little-endian float32 in bytea columns
(SQL functions i4 and f4 give arrays); times are timestamptz from the database's clock; states are text checked against the enums of
`orchestrator.contracts.states`; steps have no foreign keys, because messages arrive in any order and replays are no-ops.
"""

from orchestrator.pool.columns import metadata
from orchestrator.pool.tables.blobs import blobs
from orchestrator.pool.tables.compatibility import compatibility
from orchestrator.pool.tables.history import actions, counters, processes, transitions
from orchestrator.pool.tables.rewards import rewards, speed_noise, verdicts
from orchestrator.pool.tables.rollouts import artifacts, attempts, groups, resumes, rollouts
from orchestrator.pool.tables.runs import queue, runs, submissions, tasks
from orchestrator.pool.tables.serving import rollout_servers, sessions
from orchestrator.pool.tables.traffic import dead_letters, outbox, suspect_messages
from orchestrator.pool.tables.training import (
    batch_items,
    batch_rollouts,
    batches,
    policy_versions,
    train_steps,
    trained_steps,
)
from orchestrator.pool.tables.trajectory import (
    messages,
    prompts,
    sampling,
    step_marks,
    step_routes,
    steps,
    tool_calls,
)
from orchestrator.pool.tables.vetting import vettings

__all__ = [
    "actions",
    "artifacts",
    "attempts",
    "batch_items",
    "batch_rollouts",
    "batches",
    "blobs",
    "compatibility",
    "counters",
    "dead_letters",
    "groups",
    "messages",
    "metadata",
    "outbox",
    "policy_versions",
    "processes",
    "prompts",
    "queue",
    "resumes",
    "rewards",
    "rollout_servers",
    "rollouts",
    "runs",
    "sampling",
    "sessions",
    "speed_noise",
    "step_marks",
    "step_routes",
    "steps",
    "submissions",
    "suspect_messages",
    "tasks",
    "tool_calls",
    "train_steps",
    "trained_steps",
    "transitions",
    "verdicts",
    "vettings",
]
