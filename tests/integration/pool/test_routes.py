"""Routes are stored with their steps, and come back at the tokens that they belong to."""

from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import StepRecorded
from orchestrator.contracts.ids import Ids, ids_from_bytes, unb64
from orchestrator.pool.ingest import Fate, decode_step, ingest
from orchestrator.pool.steps import trajectories
from orchestrator.pool.tables import step_routes
from orchestrator.trajectory.routes import NOT_RECORDED, Routes
from tests import builders
from tests.integration.pool.rig import record, running, small

pytestmark = [pytest.mark.anyio, pytest.mark.services]


def route(full: Ids, start: int) -> Routes:
    """int16[n, 2, 2] of full[start:-1], by place and id: equal prefixes are routed alike."""
    places = np.arange(start, len(full) - 1)
    first = (places + full[start:-1]) % 7
    return np.stack([np.stack([first, first + 1], 1), np.stack([first + 2, first + 3], 1)], 1).astype(
        np.int16
    )


def whole(full: Ids, last: bool) -> Routes:
    """Of all tokens; `last`: whether a step continues from the last one, which is fed then."""
    known = route(np.concatenate([full, full[:1]]), 0)
    if not last:
        known[-1] = NOT_RECORDED
    return known


async def test_routes_come_back_at_their_tokens_and_a_continuation_brings_its_parents_last(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    [lease] = await running(engine, run, members=1)
    prompt = np.arange(9, dtype=np.int32)
    events = builders.Author(route=route, turns=3).trajectory(lease, run.name, prompt)
    await record(engine, run, events)
    key = [(lease.rollout_id, 1)]
    async with engine.connect() as connection:
        stored = (await trajectories(connection, run.run_id, key, routes=True))[lease.rollout_id]
        plain = (await trajectories(connection, run.run_id, key))[lease.rollout_id]
    assert [step.kind for step in stored] == ["root", "continues", "continues", "rewrites"]
    for step, other, goes_on in zip(stored, plain, (True, True, False, False), strict=True):
        assert np.array_equal(step.full, other.full) and other.tokens.full_routes is None
        assert np.array_equal(step.logprobs, other.logprobs) and step.state_len == other.state_len
        routes = step.tokens.full_routes
        assert routes is not None and np.array_equal(routes, whole(step.full, goes_on))
    assert stored[1].tokens.parent is stored[0].tokens  # shared, as without routes
    async with engine.connect() as connection:
        first = (await connection.execute(select(step_routes).order_by(step_routes.c.idx))).first()
        assert first is not None and (first.start, first.layers, first.top_k, first.width) == (0, 2, 2, 1)
        assert len(first.routes) == (len(stored[0].full) - 1) * 4
        stored_as = "SELECT attstorage::text FROM pg_attribute WHERE attname = 'routes' AND attrelid = CAST(:t AS regclass)"
        assert await connection.scalar(text(stored_as), {"t": f"step_routes_{run.run_id}"}) == "e"


async def test_a_second_continuation_by_other_experts_has_that_token_as_its_own(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [lease] = await running(engine, run, members=1)
    prompt = np.arange(9, dtype=np.int32)

    def other(full: Ids, start: int) -> Routes:
        return route(full, start) + 1

    events = builders.Author(route=route).trajectory(lease, run.name, prompt)[:2]
    again = builders.Author(route=other).trajectory(lease, run.name, prompt)[1]
    unsaid = msgspec.structs.replace(again, idx=3, routes=None)
    await record(engine, run, [*events, msgspec.structs.replace(again, idx=2), unsaid])
    async with engine.connect() as connection:
        found = await trajectories(connection, run.run_id, [(lease.rollout_id, 1)], routes=True)
    root, first, second, third = found[lease.rollout_id]
    assert first.tokens.parent is root.tokens and first.tokens.keep_len == len(root.full)
    assert second.tokens.parent is root.tokens and second.tokens.keep_len == len(root.full) - 1
    assert second.keep_len == len(root.full) and np.array_equal(second.full, first.full)
    at = len(root.full) - 1
    routes = [step.tokens.full_routes for step in (root, first, second, third)]
    assert all(each is not None for each in routes)
    kept: list[Any] = routes
    assert np.array_equal(kept[0][at], kept[1][at]) and np.array_equal(kept[2][at], kept[1][at] + 1)
    assert np.array_equal(kept[2][:at], kept[1][:at])
    assert (kept[3][at + 1 :] == NOT_RECORDED).all()  # it has no routes


async def test_a_continuation_by_other_weights_has_the_routes_of_its_whole_context(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    [lease] = await running(engine, run, members=1)
    first, second = builders.Author(route=route).trajectory(lease, run.name, np.arange(9, dtype=np.int32))[:2]
    full = np.concatenate([np.arange(9), *(ids(x) for e in (first, second) for x in (e.delta, e.action))])
    other = builders.step_routes(bytes.fromhex(second.chain_sha), 0, route(full, 0) + 1)
    await record(engine, run, [first, msgspec.structs.replace(second, routes=other)])
    async with engine.connect() as connection:
        found = await trajectories(connection, run.run_id, [(lease.rollout_id, 1)], routes=True)
    root, after = found[lease.rollout_id]
    assert np.array_equal(after.full, full) and after.tokens.parent is None
    assert after.tokens.full_routes is not None and root.tokens.full_routes is not None
    assert np.array_equal(after.tokens.full_routes[:-1], route(full, 0) + 1)
    # Its last token was never fed.
    assert np.array_equal(root.tokens.full_routes, whole(root.full, last=False))


def ids(encoded: str) -> Ids:
    return ids_from_bytes(unb64(encoded))


def changed(event: StepRecorded, **changes: Any) -> StepRecorded:
    assert event.routes is not None
    return msgspec.structs.replace(event, routes=msgspec.structs.replace(event.routes, **changes))


async def test_routes_that_do_not_fit_are_refused_and_repeats_change_nothing(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [lease] = await running(engine, run, members=1)
    event = builders.Author(route=route).trajectory(lease, run.name, np.arange(9, dtype=np.int32))[0]
    assert event.routes is not None
    for wrong, sentence in (
        ({"start": 1}, "not whole rows of tokens that were fed"),
        ({"start": 10, "ids": "AAAAAA=="}, "begin behind the first token"),
        ({"ids": event.routes.ids[:-4]}, "not whole rows of tokens that were fed"),
        ({"width": 3}, "no routes of 2 layers, 2 experts and 3 bytes per id"),
        ({"sha": "00" * 32}, "the digest of the routes is another"),
        ({"ids": "AAAA" + event.routes.ids[4:]}, "the digest of the routes is another"),
    ):
        with pytest.raises(MessageError, match=sentence):
            decode_step(changed(event, **wrong))
    await record(engine, run, [event])
    async with engine.begin() as connection:
        done = await ingest(connection, run.run_id, [decode_step(event)])
        assert done.fates == [Fate.REPEATED]
        assert await connection.scalar(select(func.count()).select_from(step_routes)) == 1
    with pytest.raises(DBAPIError, match="its rows are immutable"):
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE step_routes SET start = 1"))
