"""Attaches recorded routes to the tokens of the step tree.

A step's row begins with the last token that it keeps of its parent, which was sampled there and fed only here. The first step that continues
the parent fills the missing routes of that token. A second step with different experts has that token as its own: for training the two tokens
differ. If a row begins earlier (a root's, or a row of other weights than its parent's), everything from there on is the step's own;
the trie still merges equal tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.ids import Ids
from orchestrator.pool.columns import among_pairs
from orchestrator.pool.tables import step_routes
from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.routes import (
    NOT_RECORDED,
    Routes,
    routes_from_bytes,
    unrecorded,
)

Key = tuple[int, int, int]  # rollout, attempt, idx


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRoutes:
    """int16[n, layers, top_k] of the positions from `start` on."""

    start: int
    rows: Routes


async def recorded_routes(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> Mapping[Key, RecordedRoutes]:
    """The routes of (rollout, attempt) pairs by step. ValueError if the policy's shape changed between them."""
    columns = step_routes.c
    found = await connection.execute(
        select(step_routes)
        .where(columns.run_id == run_id, among_pairs(columns.rollout_id, columns.attempt, attempts_of))
        .order_by(columns.rollout_id, columns.attempt, columns.idx)
    )
    recorded = {
        (row.rollout_id, row.attempt, row.idx): RecordedRoutes(
            row.start, routes_from_bytes(row.routes, row.layers, row.top_k, row.width)
        )
        for row in found
    }
    if len(shapes := {routes.rows.shape[1:] for routes in recorded.values()}) > 1:
        raise ValueError(f"its steps were routed by models of different shapes: {sorted(shapes)}")
    return recorded


def routed_branch(
    own: Ids, above: Branch, keep_len: int, recorded: RecordedRoutes | None, like: Routes
) -> Branch:
    """The branch of a step with its recorded routes; `like` has the shape of this batch's routes.

    May write into the routes of `above`, which must come from this function: once, into its unrecorded last token.
    """
    begin = keep_len
    if recorded is not None and recorded.start < keep_len:
        begin = recorded.start if not _fills(above, keep_len, recorded) else keep_len
    own = np.concatenate([above.tail(begin)[: keep_len - begin], own])
    routes = unrecorded(len(own), like)
    if recorded is not None:
        offset = max(recorded.start - begin, 0)
        rows = recorded.rows[max(begin - recorded.start, 0) :][: len(own) - offset]
        routes[offset : offset + len(rows)] = rows
    return Branch(own=own, parent=above if begin else None, keep_len=begin, routes=routes)


def _fills(above: Branch, keep_len: int, recorded: RecordedRoutes) -> bool:
    """Whether the first row equals the routes of the last token of `above`. If those are unrecorded, they are set to the first row."""
    if (
        recorded.start != keep_len - 1
        or keep_len != len(above)
        or above.routes is None
        or not len(above.routes)
    ):
        return False
    last_row = above.routes[-1]
    if (last_row == NOT_RECORDED).all():
        last_row[:] = recorded.rows[0]
    return bool((last_row == recorded.rows[0]).all())
