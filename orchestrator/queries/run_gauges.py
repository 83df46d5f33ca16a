"""The current amounts of a run, which the orchestrator exports as Prometheus gauges."""

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.scheduling.window import QueueRow
from orchestrator.settings.config import Config

MAX_COUNTED = 100_000  # counting limit for tables that should stay small

# Partial indexes exclude terminal rollouts and done groups.
_ROLLOUTS = text(
    "SELECT state, count(*) AS n FROM rollouts WHERE run_id = :run AND state NOT IN ('verified', 'lost') GROUP BY state"
)
_GROUPS = text(
    """
    SELECT seq, state, domain, extract(epoch FROM clock_timestamp() - dispatched)::float8 AS age_s
    FROM groups WHERE run_id = :run AND NOT done AND seq IS NOT NULL AND state IN ('dispatched', 'ready', 'taken') ORDER BY seq
    """
)
_OTHERS = text(
    """
    SELECT (SELECT count(*) FROM groups WHERE run_id = :run AND state = 'accepted') AS accepted,
           (SELECT count(*) FROM (SELECT FROM outbox WHERE run_id = :run LIMIT :most) o) AS outbox,
           (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8
              FROM (SELECT at FROM outbox WHERE run_id = :run LIMIT :most) o) AS outbox_s,
           (SELECT count(*) FROM (SELECT FROM dead_letters WHERE run_id = :run OR run_id IS NULL LIMIT :most) d) AS letters,
           (SELECT count(*) FROM rollout_servers WHERE run_id = :run AND lease_until > clock_timestamp()) AS servers,
           (SELECT max(version) FROM policy_versions WHERE run_id = :run AND superseded_by IS NULL) AS version
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGauges:
    """A run at one moment. Counts; `head_s` and `outbox_s` in seconds; `version` is −1 before the first version."""

    rollouts: dict[str, int]
    groups: dict[str, int]
    head_s: float
    window: int
    capacity: int
    open: int
    takeable: int
    beyond: int
    outbox: int
    outbox_s: float
    letters: int
    servers: int
    version: int


async def run_gauges(connection: AsyncConnection, run_id: int, config: Config) -> RunGauges:
    """Read the values of the gauges. Nothing is locked."""
    rollouts = {row.state: int(row.n) for row in await connection.execute(_ROLLOUTS, {"run": run_id})}
    rows = (await connection.execute(_GROUPS, {"run": run_id})).all()
    others = (await connection.execute(_OTHERS, {"run": run_id, "most": MAX_COUNTED})).one()
    groups = Counter[str](row.state for row in rows)
    groups[GroupState.ACCEPTED] = others.accepted
    waiting = [row for row in rows if row.state != GroupState.TAKEN]
    queue = config.queue
    policy = queue_policy(queue.policy, queue.capacity, queue.window_fraction)
    takeable = policy.takeable(
        [QueueRow(row.seq, GroupState(row.state), row.domain) for row in waiting], len(waiting)
    )
    return RunGauges(
        rollouts=rollouts,
        groups=dict(groups),
        head_s=float(waiting[0].age_s) if waiting else 0.0,
        window=queue.window,
        capacity=queue.capacity,
        open=len(waiting),
        takeable=len(takeable),
        beyond=groups[GroupState.READY] - len(takeable),
        outbox=others.outbox,
        outbox_s=float(others.outbox_s),
        letters=others.letters,
        servers=others.servers,
        version=-1 if others.version is None else others.version,
    )
