"""The unfinished work of a run: how much is open per stage, how old the oldest item is, and how late it is.

| stage | open | in order while |
|---|---|---|
| dispatch | accepted groups | a bound of the queue blocks it, admission is closed, a group was dispatched recently |
| lease, verify | rollouts and verifications to be leased | one was leased recently |
| run | leased rollouts | the attempt has time left |
| settle | reported rollouts with missing steps | |
| grade | leased verifications | the verifier reports so |
| reap | expired leases | |
| conclude | dispatched groups whose members are all terminal | |
| take | ready groups | the window excludes them, a batch is being trained, a group was taken recently |
| commit | the closed batch | the trainer reports so |
| publish | outbox rows that are due | |
| sync | servers that do not serve the newest version | their gateway reports so |

Lateness is the waiting time of the oldest item beyond the time that is in order. Times are seconds on the database's clock. Nothing is locked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BacklogStageName, GroupState
from orchestrator.pool.dispatch import view_queue
from orchestrator.pool.rows import from_row
from orchestrator.scheduling.admission import QueueSettings, binding
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.scheduling.window import QueueRow
from orchestrator.settings.config import Config

RECENT_GROUPS = 100  # queue positions whose durations `group_seconds` reads
MIN_READY_GROUPS = 20  # fewer durations say nothing about the longest


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogStage:
    """One stage. `item` is the oldest of its `open` items. `late_s` is 0 while its age is in order; `held` is the reason why it waits.
    `waits_for_head`: that reason is the window, whose head is not ready. `owner`: the holder of its lease. `last_s`: time since the last event in
    the stage, None if that means nothing."""

    name: BacklogStageName
    open: int = 0
    item: str = ""
    oldest_s: float = 0.0
    late_s: float = 0.0
    held: str = ""
    waits_for_head: bool = False
    owner: str = ""
    last_s: float | None = None


# One row per stage. Partial indexes exclude finished rows (done groups, terminal rollouts).
_STAGES = text(
    """
    WITH r AS MATERIALIZED (
      SELECT rollout_id, state, changed, lease_until, lease_owner, greatest(changed, coalesce(not_before, changed)) AS due
      FROM rollouts WHERE run_id = :run AND state NOT IN ('verified', 'lost')),
    g AS MATERIALIZED (
      SELECT group_id, state, dispatched FROM groups WHERE run_id = :run AND NOT done AND state = 'dispatched'),
    leased AS (
      SELECT CASE state WHEN 'running' THEN 'run' ELSE 'grade' END AS name, count(*) AS open, min(changed) AS oldest,
             (array_agg(rollout_id ORDER BY changed))[1] AS item, (array_agg(lease_owner ORDER BY changed))[1] AS owner, max(changed) AS last
      FROM r WHERE state IN ('running', 'verifying') GROUP BY state),
    s(name, open, oldest, item, owner, last) AS (
      SELECT 'dispatch', count(*), (SELECT created FROM groups WHERE group_id = min(a.group_id)), 'group ' || min(a.group_id), NULL,
             (SELECT max(dispatched) FROM g)
        FROM groups a WHERE run_id = :run AND state = 'accepted'
      UNION ALL
      SELECT 'lease', count(*), min(due), 'rollout ' || (array_agg(rollout_id ORDER BY due))[1], NULL,
             (SELECT last FROM leased WHERE name = 'run')
        FROM r WHERE state = 'queued' AND due <= clock_timestamp()
      UNION ALL
      SELECT 'verify', count(*), min(due), 'rollout ' || (array_agg(rollout_id ORDER BY due))[1], NULL,
             (SELECT last FROM leased WHERE name = 'grade')
        FROM r WHERE state = 'finished' AND due <= clock_timestamp()
      UNION ALL
      SELECT name, open, oldest, 'rollout ' || item, owner, NULL FROM leased
      UNION ALL
      SELECT 'settle', count(*), min(changed), 'rollout ' || (array_agg(rollout_id ORDER BY changed))[1], NULL, NULL
        FROM r WHERE state = 'reported'
      UNION ALL
      SELECT 'reap', count(*), min(lease_until), 'rollout ' || (array_agg(rollout_id ORDER BY lease_until))[1],
             (array_agg(lease_owner ORDER BY lease_until))[1], NULL
        FROM r WHERE lease_until < clock_timestamp()
      UNION ALL
      SELECT 'conclude', count(*), min(over), 'group ' || (array_agg(group_id ORDER BY over))[1], NULL, NULL
        FROM (SELECT m.group_id, max(m.changed) AS over FROM g JOIN rollouts m ON m.group_id = g.group_id
               GROUP BY m.group_id HAVING bool_and(m.state IN ('verified', 'lost'))) concluded
      UNION ALL
      SELECT 'commit', count(*), min(closed), 'batch ' || min(batch_no), NULL, NULL
        FROM batches WHERE run_id = :run AND state = 'closed'
      UNION ALL
      SELECT 'publish', count(*), min(due), (array_agg(subject ORDER BY due))[1], NULL, NULL
        FROM (SELECT subject, greatest(at, coalesce(not_before, at)) AS due FROM outbox WHERE run_id = :run) o
       WHERE due <= clock_timestamp()
      UNION ALL
      SELECT 'sync', count(*), max(v.at), 'version ' || max(v.version) || ' on ' || min(s.url), NULL, NULL
        FROM rollout_servers s,
             (SELECT version, at FROM policy_versions WHERE run_id = :run AND superseded_by IS NULL ORDER BY version DESC LIMIT 1) v
       WHERE s.run_id = :run AND s.lease_until > clock_timestamp() AND (s.state <> 'ready' OR s.version IS DISTINCT FROM v.version)
         AND NOT (s.state = 'ready' AND EXISTS (SELECT FROM groups g WHERE g.run_id = :run AND NOT g.done AND g.purpose = 'eval'
                                                  AND g.pinned_version = s.version)))
    SELECT name, open, item, coalesce(owner, '') AS owner, extract(epoch FROM clock_timestamp() - oldest)::float8 AS oldest_s,
           extract(epoch FROM clock_timestamp() - last)::float8 AS last_s
    FROM s WHERE open > 0
    """
)

_OTHERS = text(
    """
    SELECT (SELECT count(*) FROM groups WHERE run_id = :run AND state = 'accepted' AND purpose <> 'train') AS waiting,
           (SELECT count(*) FROM rollouts r JOIN groups g USING (group_id)
             WHERE r.run_id = :run AND r.state IN ('queued', 'running') AND g.purpose <> 'train') AS busy
    """
)

_QUEUE = text(
    """
    SELECT seq, state, group_id, domain, extract(epoch FROM clock_timestamp() - greatest(ready, (
             SELECT max(at) FROM transitions WHERE kind = 'group' AND entity_id = group_id AND to_state = 'ready' AND from_state <> 'dispatched'
           )))::float8 AS ready_s -- since a batch gave it back, if one did
    FROM groups WHERE run_id = :run AND NOT done AND seq IS NOT NULL AND state IN ('dispatched', 'ready') ORDER BY seq
    """
)

_TAKEN = text(
    """
    SELECT extract(epoch FROM clock_timestamp() - max(i.taken))::float8 FROM batch_items i JOIN batches b USING (batch_id)
    WHERE b.run_id = :run AND b.state = 'open'
    """
)

_OPEN_BATCH = text(
    """
    SELECT b.batch_no, (SELECT count(*) FROM batch_items i WHERE i.batch_id = b.batch_id AND NOT i.voided) AS taken
    FROM batches b WHERE b.run_id = :run AND b.state = 'open' ORDER BY b.batch_no DESC LIMIT 1
    """
)

_SECONDS = text(
    """
    SELECT count(*) AS n, max(s) AS longest, avg(s) AS mean
    FROM (SELECT extract(epoch FROM ready - dispatched)::float8 AS s FROM groups
           WHERE run_id = :run AND seq >= (SELECT next_seq - :among FROM queue WHERE run_id = :run) AND ready IS NOT NULL) lately
    """
)

_STATES = text("SELECT state, count(*) FROM groups WHERE run_id = :run GROUP BY state")


async def stages(
    connection: AsyncConnection, run_id: int, config: Config, settings: QueueSettings
) -> list[BacklogStage]:
    """Every stage of a run, in the order in which a task passes through them. `settings` are those of admission."""
    rows = await connection.execute(_STAGES, {"run": run_id})
    found = {row.name: from_row(BacklogStage, row, oldest_s=float(row.oldest_s)) for row in rows}
    training = BacklogStageName.COMMIT in found
    judged = []
    for name in BacklogStageName:
        stage = found.get(name, BacklogStage(name=name))
        match name:
            case BacklogStageName.TAKE:
                stage = await _take(connection, run_id, config, training)
            case BacklogStageName.DISPATCH if stage.open:
                stage = await _dispatch(connection, run_id, config, settings, stage)
            case _ if stage.open:
                stage = _judge(stage, config)
        judged.append(stage)
    return judged


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """The batch that takes groups now: it holds `taken` groups and closes at `size`."""

    batch_no: int
    size: int
    taken: int

    @property
    def sentence(self) -> str:
        """
        >>> OpenBatch(3, 8, 6).sentence
        '6 groups are taken: they wait in batch 3 for 2 more'
        """
        groups = (
            "1 group is taken: it waits" if self.taken == 1 else f"{self.taken} groups are taken: they wait"
        )
        return f"{groups} in batch {self.batch_no} for {self.size - self.taken} more"


async def open_batch(connection: AsyncConnection, run_id: int, batch_groups: int) -> OpenBatch | None:
    """The open batch, which closes at `batch_groups` groups. None if there is none, or it has taken nothing yet."""
    row = (await connection.execute(_OPEN_BATCH, {"run": run_id})).first()
    return OpenBatch(row.batch_no, batch_groups, int(row.taken)) if row is not None and row.taken else None


async def group_seconds(connection: AsyncConnection, run_id: int) -> tuple[float, float] | None:
    """(longest, mean) seconds from dispatch to ready, over those of the newest `RECENT_GROUPS` queue positions that are ready; None with fewer
    than `MIN_READY_GROUPS` of them."""
    row = (await connection.execute(_SECONDS, {"run": run_id, "among": RECENT_GROUPS})).one()
    return (float(row.longest), float(row.mean)) if row.n >= MIN_READY_GROUPS and row.mean > 0 else None


async def states(connection: AsyncConnection, run_id: int) -> Mapping[str, int]:
    """How many groups are in each state: reads every group of the run."""
    return {state: int(n) for state, n in await connection.execute(_STATES, {"run": run_id})}


def _judge(stage: BacklogStage, config: Config) -> BacklogStage:
    match stage.name:
        case BacklogStageName.RUN:
            late = stage.oldest_s - config.rollout.timeout_s
            return (
                replace(stage, late_s=late) if late > 0 else replace(stage, held="attempts take their time")
            )
        case BacklogStageName.GRADE:
            return replace(stage, held="verifications take their time")
        case BacklogStageName.COMMIT:
            return replace(stage, held="it is being trained")
        case BacklogStageName.SYNC:
            return replace(stage, held="it is being brought there")
    return _lately(stage)


def _lately(stage: BacklogStage) -> BacklogStage:
    """Lateness is at most the time since the last event in the stage."""
    last = stage.last_s
    return replace(stage, late_s=stage.oldest_s if last is None else min(stage.oldest_s, last))


async def _dispatch(
    connection: AsyncConnection, run_id: int, config: Config, settings: QueueSettings, stage: BacklogStage
) -> BacklogStage:
    view = await view_queue(connection, run_id, config.stage)
    other_work = (await connection.execute(_OTHERS, {"run": run_id})).one()
    train = stage.open - other_work.waiting
    if train and not view.admission_open:
        train, obstacle = 0, "admission is closed"
    elif train and (bound := binding(view.counts, settings)) is not None:
        train, obstacle = 0, bound
    elif train and not sum(view.accepted.values()):
        train, obstacle = 0, "its stage has not started"
    else:
        obstacle = "every slot is busy"
    if not train and (not other_work.waiting or other_work.busy >= config.rollout.slots):
        return replace(stage, held=obstacle)
    return _lately(stage)


async def _take(connection: AsyncConnection, run_id: int, config: Config, training: bool) -> BacklogStage:
    rows = (await connection.execute(_QUEUE, {"run": run_id})).all()
    ready = {row.seq: row for row in rows if row.state == GroupState.READY}
    if not ready:
        return BacklogStage(name=BacklogStageName.TAKE)
    queue = config.queue
    policy = queue_policy(queue.policy, queue.capacity, queue.window_fraction)
    open_rows = [QueueRow(row.seq, GroupState(row.state), row.domain) for row in rows]
    takeable = policy.takeable(open_rows, len(open_rows))
    oldest = max((ready[seq] for seq in takeable or ready), key=lambda row: float(row.ready_s))
    stage = BacklogStage(
        name=BacklogStageName.TAKE,
        open=len(ready),
        item=f"group {oldest.group_id}",
        oldest_s=float(oldest.ready_s),
    )
    if training:
        return replace(stage, held="a batch is being trained")
    if not takeable:
        head = f"group {rows[0].group_id} at {rows[0].seq}"
        return replace(stage, held=f"the window waits for its head, {head}", waits_for_head=True)
    return _lately(replace(stage, last_s=await connection.scalar(_TAKEN, {"run": run_id})))
