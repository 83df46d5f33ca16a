"""The queue: positions around the window, the mix of domains served against offered, and the run's status."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.queue_window import GREEDY
from orchestrator.contracts.states import GroupState
from orchestrator.pool.dispatch import SERVED_WITHIN, view_queue
from orchestrator.pool.rows import from_row
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.status import RunStatus, run_status
from orchestrator.scheduling.admission import QueueSettings, dispatchable
from orchestrator.settings.config import Config

BEHIND = 64  # positions shown before the oldest open one: trained groups and holes
SHOWN = 1_500  # positions at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One queue position. `running`, `waiting`, `over`, `lost` count its rollouts (`over`: verified). Times are seconds since 1970."""

    seq: int
    group_id: int
    task: str
    domain: str
    scaffold: str
    state: GroupState
    reason: str | None
    size: int
    running: int
    waiting: int
    over: int
    lost: int
    dispatched: float | None
    ready: float | None
    ended: float | None
    batch_no: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """One domain: its share of the stage (0 to 1), its groups among the latest positions, and how many wait."""

    domain: str
    share: float
    served: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """`head`: the oldest position that is neither taken nor resolved; `window`: W positions from there. `room`: groups that admission would
    dispatch now. `served_within`: the number of latest positions that `mix` counts."""

    run: str
    status: RunStatus
    policy: str
    capacity: int
    window: int
    batch_groups: int
    max_staleness: int
    stage: str
    head: int | None
    next_seq: int
    outstanding: int
    room: int
    running_rollouts: int
    intake_open: bool
    open_batch: int | None
    open_batch_size: int | None
    open_batch_taken: int | None
    mix: list[Mix]
    served_within: int
    positions: list[Position]


_POSITIONS = text(
    """
    SELECT g.seq, g.group_id, t.name AS task, g.domain, g.scaffold, g.state, g.reason, g.size::int AS size,
           coalesce(m.running, 0) AS running, coalesce(m.waiting, 0) AS waiting, coalesce(m.over, 0) AS over, coalesce(m.lost, 0) AS lost,
           extract(epoch FROM g.dispatched)::float8 AS dispatched, extract(epoch FROM g.ready)::float8 AS ready,
           extract(epoch FROM g.ended)::float8 AS ended,
           (SELECT b.batch_no FROM batch_items i JOIN batches b USING (batch_id)
             WHERE i.group_id = g.group_id AND NOT i.voided AND g.state IN ('taken', 'trained')) AS batch_no
    FROM groups g JOIN tasks t USING (task_id)
    LEFT JOIN LATERAL (
      SELECT count(*) FILTER (WHERE r.state IN ('running', 'reported', 'finished', 'verifying')) AS running,
             count(*) FILTER (WHERE r.state IN ('waiting', 'queued')) AS waiting,
             count(*) FILTER (WHERE r.state = 'verified') AS over, count(*) FILTER (WHERE r.state = 'lost') AS lost
      FROM rollouts r WHERE r.group_id = g.group_id) m ON true
    WHERE g.run_id = :run AND g.seq >= :first
    ORDER BY g.seq LIMIT :limit
    """
)
_OLDEST = text(
    """
    SELECT min(seq) AS open, min(seq) FILTER (WHERE state <> 'taken') AS head
    FROM groups WHERE run_id = :run AND NOT done AND seq IS NOT NULL
    """
)
_BATCH = text(
    """
    SELECT b.batch_no, b.size::int AS size, (SELECT count(*) FROM batch_items i WHERE i.batch_id = b.batch_id AND NOT i.voided) AS taken
    FROM batches b WHERE b.run_id = :run AND b.state IN ('open', 'closed') ORDER BY b.batch_no LIMIT 1
    """
)


def _window(config: Config, head: int | None, dispatched: int) -> int:
    """W as the pages show it, from `head` on; `greedy` takes any open position of the `dispatched` ones."""
    window = config.queue.window
    return window if head is None or config.queue.policy != GREEDY else max(window, dispatched - head)


async def queue(
    connection: AsyncConnection, run: StoredRun, config: Config, settings: QueueSettings
) -> Queue:
    """`config`: as the run stores it; `settings`: of admission."""
    view = await view_queue(connection, run.run_id, config.stage)
    oldest = (await connection.execute(_OLDEST, {"run": run.run_id})).one()
    oldest_position = view.counts.dispatched if oldest.open is None else oldest.open
    first = max(0, oldest_position - BEHIND)
    found = await connection.execute(_POSITIONS, {"run": run.run_id, "first": first, "limit": SHOWN})
    positions = [from_row(Position, row) for row in found]
    batch = (await connection.execute(_BATCH, {"run": run.run_id})).first()
    stage = view.stage or config.stage
    shares = stage.domains or dict.fromkeys(sorted({*view.accepted, *view.served}), 1.0)
    scale = sum(shares.values()) or 1.0
    return Queue(
        run=run.name,
        status=await run_status(connection, run, config, settings),
        policy=config.queue.policy,
        capacity=config.queue.capacity,
        window=_window(config, oldest.head, view.counts.dispatched),
        batch_groups=config.queue.batch_groups,
        max_staleness=config.queue.max_staleness,
        stage=stage.name,
        head=oldest.head,
        next_seq=view.counts.dispatched,
        outstanding=view.counts.outstanding,
        room=dispatchable(view.counts, settings),
        running_rollouts=view.counts.running_rollouts,
        intake_open=view.intake_open,
        open_batch=batch.batch_no if batch else None,
        # An open batch gets its size when it closes.
        open_batch_size=(batch.size or config.queue.batch_groups) if batch else None,
        open_batch_taken=batch.taken if batch else None,
        mix=[
            Mix(
                domain=domain,
                share=shares.get(domain, 0.0) / scale,
                served=view.served.get(domain, 0),
                waiting=view.accepted.get(domain, 0),
            )
            for domain in sorted({*shares, *view.served, *view.accepted})
        ],
        served_within=min(SERVED_WITHIN, view.counts.dispatched),
        positions=positions,
    )
