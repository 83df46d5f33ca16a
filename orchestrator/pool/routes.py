"""Recorded routes, put to the tokens of the step tree that they belong to.

A step's row begins with the last token that it keeps of its parent, which was sampled there and fed only here: the first step that goes on
with it fills the place that its parent has left. A second one whose experts were others has that token as its own: the two are different
for training. A row that begins earlier (a root's, or one of other weights than its parent's) makes everything from there on the step's own;
the trie merges what is the same all the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.branch import Branch
from orchestrator.contracts.ids import Ids
from orchestrator.contracts.routes import NOT_RECORDED, Routes, routes_from_bytes, unrecorded
from orchestrator.pool.tables import step_routes

Key = tuple[int, int, int]  # rollout, attempt, idx


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """int16[n, layers, top_k] of the positions from `start` on."""

    start: int
    rows: Routes


async def recorded_routes(
    connection: AsyncConnection, run_id: int, attempts_of: Sequence[tuple[int, int]]
) -> Mapping[Key, Recorded]:
    """The routes of (rollout, attempt) pairs by step. ValueError when the policy's shape changed between them."""
    of = step_routes.c
    found = await connection.execute(
        select(step_routes)
        .where(of.run_id == run_id, tuple_(of.rollout_id, of.attempt).in_(attempts_of))
        .order_by(of.rollout_id, of.attempt, of.idx)
    )
    told = {
        (row.rollout_id, row.attempt, row.idx): Recorded(
            row.start, routes_from_bytes(row.routes, row.layers, row.top_k, row.width)
        )
        for row in found
    }
    if len(shapes := {one.rows.shape[1:] for one in told.values()}) > 1:
        raise ValueError(f"its steps were routed by models of different shapes: {sorted(shapes)}")
    return told


def routed_branch(own: Ids, above: Branch, keep_len: int, told: Recorded | None, like: Routes) -> Branch:
    """The branch of a step with the routes that are recorded of it; `like` has the shape of this batch's routes.

    May write into the routes of `above`, which must come from here: into the place that waits for them, once.
    """
    begin = keep_len
    if told is not None and told.start < keep_len:
        begin = told.start if not _fills(above, keep_len, told) else keep_len
    own = np.concatenate([above.tail(begin)[: keep_len - begin], own])
    routes = unrecorded(len(own), like)
    if told is not None:
        at = max(told.start - begin, 0)
        rows = told.rows[max(begin - told.start, 0) :][: len(own) - at]
        routes[at : at + len(rows)] = rows
    return Branch(own, above if begin else None, begin, routes)


def _fills(above: Branch, keep_len: int, told: Recorded) -> bool:
    """Whether the first row is that of the last token of `above`, as it is known there, or from now on is."""
    if told.start != keep_len - 1 or keep_len != len(above) or above.routes is None or not len(above.routes):
        return False
    place = above.routes[-1]
    if (place == NOT_RECORDED).all():
        place[:] = told.rows[0]
    return bool((place == told.rows[0]).all())
