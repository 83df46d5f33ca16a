"""Current activity of a run: active rollouts, rollout servers, processes, the trainer. It reads open work only, so finished work costs
nothing."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import Purpose, RolloutState, ServerState
from orchestrator.pool.draining import own_left
from orchestrator.pool.heartbeats import present
from orchestrator.pool.rows import from_row
from orchestrator.pool.runs import StoredRun

SHOWN = 200
CURVE_STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRollout:
    """A rollout that a worker holds, or that waits for its steps or verdict. `for_s`: since its state last changed; `owner`: the worker
    that holds its lease, `lease_s`: time left on the lease (negative: expired); `last_step_s`: since its last step was recorded."""

    rollout_id: int
    group_id: int
    seq: int | None
    domain: str
    scaffold: str
    task: str
    purpose: Purpose
    state: RolloutState
    attempt: int
    for_s: float
    owner: str | None
    lease_s: float | None
    steps: int
    action_tokens: int
    version: int | None
    last_step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerActivity:
    """A rollout server as its gateway sees it; `lease_s`: time left on the gateway's lease; `draining`: it gets no new calls."""

    url: str
    state: ServerState
    version: int | None
    owner: str | None
    lease_s: float | None
    detail: str | None
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessActivity:
    """A process of the run. `busy`: the current items of its loops, longest first; `stuck_s`: of the loop that hangs longest, 0: no loop
    hangs. `draining`: it takes no new work; `left`: how much it still holds while draining, None: not reported."""

    host: str
    name: str
    pid: int
    silent_s: float
    stopped: bool
    busy: list[str]
    stuck_s: float
    draining: bool = False
    left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerView:
    """The newest train steps, newest first, and the newest version that counts. `since_s`: since the newest train step was committed."""

    version: int | None
    train_step: int | None
    batch_no: int | None
    since_s: float | None
    metrics: dict[str, Any]
    performances: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunActivity:
    """`states`: rollouts by state, with those that wait for their group's dispatch counted apart. `rollouts`: the SHOWN that are in their
    state longest."""

    states: dict[str, int]
    rollouts: list[ActiveRollout]
    servers: list[ServerActivity]
    processes: list[ProcessActivity]
    trainer: TrainerView


_STATES = text(
    """SELECT state, count(*)::int AS n FROM rollouts
        WHERE run_id = :run AND state NOT IN ('verified', 'lost') AND state IN ('queued', 'running', 'reported', 'finished', 'verifying')
        GROUP BY state"""
)
_ROLLOUTS = text(
    """WITH w AS MATERIALIZED (
         SELECT * FROM rollouts
          WHERE run_id = :run AND state NOT IN ('verified', 'lost') AND state IN ('running', 'reported', 'finished', 'verifying')
          ORDER BY changed LIMIT :n)
       SELECT w.rollout_id, w.group_id, g.seq, g.domain, g.scaffold, t.name AS task, g.purpose, w.state, w.attempt::int AS attempt,
              extract(epoch FROM clock_timestamp() - w.changed)::float8 AS for_s, w.lease_owner AS owner,
              extract(epoch FROM w.lease_until - clock_timestamp())::float8 AS lease_s,
              s.steps, s.action_tokens, s.version, extract(epoch FROM clock_timestamp() - s.last)::float8 AS last_step_s
         FROM w JOIN groups g ON g.group_id = w.group_id JOIN tasks t ON t.task_id = g.task_id
         LEFT JOIN LATERAL (
           SELECT count(*)::int AS steps, coalesce(sum(full_len - state_len), 0)::int AS action_tokens, max(v_hi) AS version, max(at) AS last
             FROM steps WHERE run_id = :run AND rollout_id = w.rollout_id AND attempt = w.attempt) s ON true
        ORDER BY w.changed"""
)
_SERVERS = text(
    """SELECT url, state, version, owner, extract(epoch FROM lease_until - clock_timestamp())::float8 AS lease_s, detail,
              draining IS NOT NULL AS draining
         FROM rollout_servers WHERE run_id = :run ORDER BY url LIMIT :n"""
)
_VERSION = text(
    "SELECT version FROM policy_versions WHERE run_id = :run AND superseded_by IS NULL ORDER BY version DESC LIMIT 1"
)
_STEPS = text(
    """SELECT t.train_step, b.batch_no, t.metrics, extract(epoch FROM clock_timestamp() - t.at)::float8 AS since_s
         FROM train_steps t JOIN batches b ON b.batch_id = t.batch_id AND b.state = 'committed'
        WHERE t.run_id = :run ORDER BY t.train_step DESC LIMIT :n"""
)


async def run_activity(connection: AsyncConnection, run: StoredRun) -> RunActivity:
    """The run's work now; the trainer's view covers the newest `CURVE_STEPS` train steps."""
    key = {"run": run.run_id, "n": SHOWN}
    states = {row.state: row.n for row in await connection.execute(_STATES, {"run": run.run_id})}
    rollouts = [from_row(ActiveRollout, row) for row in await connection.execute(_ROLLOUTS, key)]
    servers = [from_row(ServerActivity, row) for row in await connection.execute(_SERVERS, key)]
    steps = (await connection.execute(_STEPS, {"run": run.run_id, "n": CURVE_STEPS})).all()
    newest = steps[0] if steps else None
    trainer = TrainerView(
        version=await connection.scalar(_VERSION, {"run": run.run_id}),
        train_step=newest.train_step if newest else None,
        batch_no=newest.batch_no if newest else None,
        since_s=newest.since_s if newest else None,
        metrics=newest.metrics if newest else {},
        performances=[row.metrics.get("performance") for row in steps],
    )
    processes = []
    for process in await present(connection, run.run_id):
        working = sorted((loop for loop in process.loops if not loop.resting), key=lambda loop: -loop.age_s)
        busy = [f"{loop.name}: {loop.item or loop.waits_for}" for loop in working]
        stuck = max((loop.stuck_s for loop in process.loops), default=0.0)
        processes.append(
            ProcessActivity(
                host=process.host,
                name=process.process,
                pid=process.pid,
                silent_s=process.silent_s,
                stopped=process.stopped,
                busy=busy,
                stuck_s=stuck,
                draining=process.draining,
                left=own_left(process),
            )
        )
    return RunActivity(
        states=states, rollouts=rollouts, servers=servers, processes=processes, trainer=trainer
    )
