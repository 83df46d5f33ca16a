"""One batch: its groups, the metrics of its train steps, and the prefix tree of its samples. Times are seconds since the epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.states import BatchState, GroupState
from orchestrator.pool.batches import BatchRollout, contents
from orchestrator.pool.rows import from_row
from orchestrator.pool.steps import trajectories
from orchestrator.queries.tree import (
    DRAWN,
    PrefixTree,
    Sample,
    prefix_tree,
)

NEWEST = 10
"""Batches among which failed ones are named."""
MAX_TREE = 8_000_000
"""Most stored tokens in a tree: some 64 MB of bytes and a second. For a larger batch, the tree covers its first groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """A group of the batch. Rewards and advantages are the pinned ones; None before the batch is closed. `rollouts`: those of its `size` members
    that train; the others have no verdict or do not count."""

    pos: int
    group_id: int
    seq: int | None
    domain: str
    task: str
    scaffold: str
    state: GroupState
    size: int
    rollouts: int
    reward: float | None
    performance: float | None
    advantage_spread: float | None
    taken: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep:
    """One optimizer step with its metrics, as written by the trainer."""

    train_step: int
    part: int
    at: float
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voided:
    """A voided batch: its number became free again. `reason`: quarantined, run_ended or the rewind; `detail`: of a quarantined batch."""

    batch_id: int
    at: float
    reason: str
    detail: str | None
    groups: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`size`: its groups once it is closed, before that its target size. `version`: the version that it published; `trainer_version`: the version
    that it trained on. A voided batch has no train steps that count. `voided`: the newest voided batches of this number, including itself."""

    batch_no: int
    batch_id: int
    state: BatchState
    size: int
    version: int | None
    trainer_version: int | None
    opened: float
    closed: float | None
    committed: float | None
    groups: list[BatchGroup]
    train_steps: list[TrainStep]
    voided: list[Voided]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTree:
    """The prefix tree of a batch, or of its first `groups_in` groups if it exceeds the largest tree (`groups`: all of them)."""

    batch_no: int
    groups: int
    groups_in: int
    tree: PrefixTree


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A batch in the list, over all of its train steps: means of reward and performance over their rollouts; `merge_ratio`: tokens of their
    samples to tokens that they forwarded; `action_tokens`: trained by all of them. None before its commit."""

    batch_no: int
    state: BatchState
    size: int
    taken: int
    version: int | None
    opened: float
    committed: float | None
    train_steps: int
    reward: float | None
    performance: float | None
    merge_ratio: float | None
    action_tokens: int | None


# A batch gets its size when it closes; before that, use the run's configured batch size.
_SIZE = """coalesce(nullif(b.size, 0), (SELECT (r.config #>> '{queue,batch_groups}')::int
                                         FROM runs r WHERE r.run_id = b.run_id), 0)::int"""
_HEAD = text(
    f"""SELECT b.batch_no, b.batch_id, b.state, {_SIZE} AS size, b.version, p.parent AS trainer_version,
              extract(epoch FROM b.opened)::float8 AS opened,
              extract(epoch FROM b.closed)::float8 AS closed, extract(epoch FROM b.committed)::float8 AS committed
         FROM batches b LEFT JOIN policy_versions p ON p.run_id = b.run_id AND p.version = b.version
        WHERE b.run_id = :run AND b.batch_no = :batch ORDER BY (b.state = 'voided'), b.batch_id DESC LIMIT 1"""
)
_GROUPS = text(
    """SELECT i.pos, g.group_id, g.seq, g.domain, t.name AS task, g.scaffold, g.state, g.size, extract(epoch FROM i.taken)::float8 AS taken,
              count(br.rollout_id) AS rollouts, avg(w.total) AS reward, avg(w.performance) AS performance,
              max(br.advantage) - min(br.advantage) AS advantage_spread
         FROM batch_items i JOIN groups g ON g.group_id = i.group_id JOIN tasks t ON t.task_id = g.task_id
         LEFT JOIN batch_rollouts br ON br.batch_id = i.batch_id AND br.group_id = i.group_id
         LEFT JOIN rewards w ON w.rollout_id = br.rollout_id AND w.revision = br.reward_revision
        WHERE i.batch_id = :batch GROUP BY i.pos, g.group_id, t.name, i.taken ORDER BY i.pos"""
)
_TRAIN_STEPS = text(
    """SELECT train_step, part, extract(epoch FROM at)::float8 AS at, metrics FROM train_steps WHERE batch_id = :batch ORDER BY part"""
)
_VOIDED = text(
    """SELECT b.batch_id, extract(epoch FROM t.at)::float8 AS at, t.reason, b.void_detail AS detail,
              ARRAY(SELECT group_id FROM batch_items i WHERE i.batch_id = b.batch_id ORDER BY pos) AS groups
         FROM batches b JOIN transitions t ON t.kind = 'batch' AND t.entity_id = b.batch_id AND t.to_state = 'voided'
        WHERE b.run_id = :run AND b.batch_no = :batch AND b.state = 'voided' ORDER BY b.batch_id DESC LIMIT 10"""
)
_FAILED = text(
    """SELECT b.batch_no, b.state, b.void_detail AS detail, f.times, f.reason,
              ARRAY(SELECT group_id FROM batch_items i WHERE i.batch_id = b.batch_id ORDER BY pos) AS groups
         FROM (SELECT * FROM batches WHERE run_id = :run ORDER BY batch_id DESC LIMIT :n) b
         LEFT JOIN LATERAL (SELECT count(*) AS times, (array_agg(reason ORDER BY transition_id DESC))[1] AS reason FROM transitions
                             WHERE kind = 'batch' AND entity_id = b.batch_id AND from_state = 'closed' AND to_state = 'closed') f ON true
        WHERE (b.void_detail IS NOT NULL OR (b.state = 'closed' AND f.times > 0))
          AND (NOT :unresolved OR b.batch_id > coalesce((SELECT max(batch_id) FROM batches WHERE run_id = :run AND committed IS NOT NULL), 0))
        ORDER BY b.batch_id DESC"""
)
_LIST = text(
    f"""SELECT b.batch_no, b.state, {_SIZE} AS size,
              (SELECT count(*) FROM batch_items i WHERE i.batch_id = b.batch_id AND NOT i.voided) AS taken,
              b.version, extract(epoch FROM b.opened)::float8 AS opened, extract(epoch FROM b.committed)::float8 AS committed,
              s.train_steps, s.reward, s.performance, s.merge_ratio, s.action_tokens
         FROM batches b,
              LATERAL (SELECT count(*) AS train_steps, sum(reward * rollouts) / nullif(sum(rollouts) FILTER (WHERE reward IS NOT NULL), 0) AS reward,
                              sum(performance * rollouts) / nullif(sum(rollouts) FILTER (WHERE performance IS NOT NULL), 0) AS performance,
                              sum(naive) / nullif(sum(merged), 0) AS merge_ratio, sum(action_tokens)::bigint AS action_tokens
                         FROM train_steps t,
                              LATERAL (SELECT (t.metrics ->> 'reward')::float8 AS reward, (t.metrics ->> 'performance')::float8 AS performance,
                                              (t.metrics ->> 'rollouts')::float8 AS rollouts, (t.metrics ->> 'tokens_naive')::float8 AS naive,
                                              (t.metrics ->> 'tokens_merged')::float8 AS merged,
                                              (t.metrics ->> 'action_tokens')::float8 AS action_tokens) m
                        WHERE t.batch_id = b.batch_id) s
        WHERE b.run_id = :run AND b.state <> 'voided' AND b.batch_no < :before ORDER BY b.batch_no DESC LIMIT :n"""
)
_WEIGHTS = text(
    """SELECT s.rollout_id, sum(s.full_len - s.keep_len) AS tokens FROM steps s
         JOIN unnest(CAST(:rollouts AS bigint[]), CAST(:attempts AS smallint[])) AS w(rollout_id, attempt)
           ON s.rollout_id = w.rollout_id AND s.attempt = w.attempt
        WHERE s.run_id = :run GROUP BY s.rollout_id"""
)


async def batch_list(
    connection: AsyncConnection, run_id: int, *, before: int | None = None, n: int = 50
) -> list[BatchRow]:
    """Batches that are not voided, newest first, with numbers below `before`."""
    rows = await connection.execute(
        _LIST, {"run": run_id, "before": 2**31 - 1 if before is None else before, "n": n}
    )
    return [from_row(BatchRow, row) for row in rows]


async def failed_batches(connection: AsyncConnection, run_id: int, *, unresolved: bool = False) -> list[str]:
    """A sentence for each of the newest batches that was quarantined, or is tried again after a failure; newest first. `unresolved`: only of those
    after which none was committed."""
    rows = await connection.execute(_FAILED, {"run": run_id, "n": NEWEST, "unresolved": unresolved})
    return [
        f"batch {row.batch_no} (groups {', '.join(map(str, row.groups))}) "
        + (
            f"failed {'once' if row.times == 1 else f'{row.times} times'} and is tried again: {row.reason}"
            if row.state == BatchState.CLOSED
            else f"was quarantined: {row.detail}"
        )
        for row in rows
    ]


async def batch(connection: AsyncConnection, run_id: int, batch_no: int) -> Batch:
    """One batch. If a rewind voided it and its number was reused: the one that counts. Raises NotFoundError."""
    head = (await connection.execute(_HEAD, {"run": run_id, "batch": batch_no})).first()
    if head is None:
        raise NotFoundError(f"batch {batch_no} does not exist in this run")
    groups = [
        from_row(BatchGroup, row) for row in await connection.execute(_GROUPS, {"batch": head.batch_id})
    ]
    trained = await connection.execute(_TRAIN_STEPS, {"batch": head.batch_id})
    voided = await connection.execute(_VOIDED, {"run": run_id, "batch": batch_no})
    return from_row(
        Batch,
        head,
        groups=groups,
        train_steps=[from_row(TrainStep, row) for row in trained],
        voided=[from_row(Voided, row, groups=list(row.groups)) for row in voided],
    )


async def batch_tree(
    connection: AsyncConnection,
    run_id: int,
    batch_no: int,
    *,
    part: tuple[int, int] | None = None,
    drawn: int = DRAWN,
) -> BatchTree:
    """The prefix tree of a closed batch; `part` (n, of): of the n-th of its `of` train steps. Raises NotFoundError."""
    head = (await connection.execute(_HEAD, {"run": run_id, "batch": batch_no})).first()
    if head is None:
        raise NotFoundError(f"batch {batch_no} does not exist in this run")
    rollouts = await contents(connection, head.batch_id)
    groups = sorted({(rollout.seq, rollout.group_id) for rollout in rollouts})
    if part is not None:
        n, train_steps = part
        train_steps = min(train_steps, len(groups)) or 1
        if not 0 <= n < train_steps:
            raise NotFoundError(f"batch {batch_no} has {train_steps} train steps, and no part {n}")
        groups = groups[len(groups) * n // train_steps : len(groups) * (n + 1) // train_steps]
    chosen = await _affordable(connection, run_id, rollouts, groups)
    chosen_rollouts = [rollout for rollout in rollouts if (rollout.seq, rollout.group_id) in chosen]
    try:
        recorded = await trajectories(
            connection, run_id, [(r.rollout_id, r.attempt) for r in chosen_rollouts]
        )
    except ValueError as error:
        raise NotFoundError(f"the steps of batch {batch_no} do not make a tree: {error}") from error
    samples = [
        Sample(tokens=step.tokens, group_id=rollout.group_id, rollout_id=rollout.rollout_id, step=step.idx)
        for rollout in chosen_rollouts
        for step, weight in zip(recorded.get(rollout.rollout_id, []), rollout.weights, strict=False)
        if weight and not step.kept_out and len(step.tokens) > step.state_len
    ]
    tree = await anyio.to_thread.run_sync(lambda: prefix_tree(samples, drawn=drawn))
    return BatchTree(batch_no=batch_no, groups=len(groups), groups_in=len(chosen), tree=tree)


async def _affordable(
    connection: AsyncConnection,
    run_id: int,
    rollouts: Sequence[BatchRollout],
    groups: Sequence[tuple[int, int]],
) -> set[tuple[int, int]]:
    """The first groups, as many as fit into one tree; at least one."""
    rows = await connection.execute(
        _WEIGHTS,
        {
            "run": run_id,
            "rollouts": [rollout.rollout_id for rollout in rollouts],
            "attempts": [rollout.attempt for rollout in rollouts],
        },
    )
    tokens = {row.rollout_id: int(row.tokens) for row in rows}
    chosen: set[tuple[int, int]] = set()
    total = 0
    for group in groups:
        total += sum(tokens.get(r.rollout_id, 0) for r in rollouts if (r.seq, r.group_id) == group)
        if chosen and total > MAX_TREE:
            break
        chosen.add(group)
    return chosen
