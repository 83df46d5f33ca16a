"""Messages under the name of one run that name a rollout of another, with its current attempt and epoch."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.events import VerdictReached
from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.pool import leases, results
from orchestrator.pool.ingest import Fate, decode_step, ingest
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.sessions import current_lease
from orchestrator.pool.settled import MessageKey, MessageKind, settled
from tests import builders
from tests.integration.pool.rig import (
    OWNER,
    context_of,
    ended,
    report,
    rollout_row,
    rollouts_of,
    running,
    small,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services]

AUTHOR = builders.Author()
EVERYTHING = text(
    "SELECT (SELECT string_agg(r::text, ';' ORDER BY rollout_id) FROM rollouts r), "
    "(SELECT string_agg(a::text, ';' ORDER BY rollout_id, attempt) FROM attempts a), "
    "(SELECT count(*) FROM steps), (SELECT count(*) FROM verdicts), (SELECT count(*) FROM transitions)"
)

Row = Any
Claim = Callable[[AsyncConnection, StoredRun, Row], Awaitable[Any]]
"""The effect of a message on the rollout of a row; true or not empty: it changed something."""


def _key(row: Row, kind: MessageKind) -> MessageKey:
    return MessageKey(rollout_id=row.rollout_id, epoch=row.lease_epoch, idx=0, kind=kind)


def _lease_of(row: Row) -> Lease:
    return replace(builders.a_lease(), rollout_id=row.rollout_id, attempt=row.attempt, epoch=row.lease_epoch)


def _verdict(run: StoredRun, row: Row) -> VerdictReached:
    return VerdictReached(
        run=run.name,
        rollout=row.rollout_id,
        attempt=row.attempt,
        epoch=row.lease_epoch,
        failure_class=FailureClass.COMPLETED,
        reward=1.0,
    )


async def _step(connection: AsyncConnection, run: StoredRun, row: Row) -> bool:
    written = AUTHOR.trajectory(_lease_of(row), run.name, AUTHOR.ids(5, 5))
    done = await ingest(connection, run.run_id, [decode_step(written[0])])
    return list(done.fates) == [Fate.NEW]


def _again(connection: AsyncConnection, run: StoredRun, row: Row) -> Awaitable[Any]:
    return results.verify_again(
        connection, run.run_id, row.rollout_id, row.attempt, row.lease_epoch, reason="no", delay_s=0.0
    )


def _leased(before: RolloutState) -> Claim:
    return lambda c, run, row: leases.lease(
        c, run.run_id, row.rollout_id, row.lease_epoch, OWNER, 60.0, attempt=row.attempt, before=before
    )


def _renewed(c: AsyncConnection, run: StoredRun, row: Row) -> Awaitable[Any]:
    return leases.heartbeat(c, run.run_id, OWNER, {row.rollout_id: row.lease_epoch}, 600.0)


def _returned(c: AsyncConnection, run: StoredRun, row: Row) -> Awaitable[Any]:
    return leases.give_back(c, run.run_id, OWNER, {row.rollout_id: row.lease_epoch})


CLAIMS: Mapping[str, tuple[RolloutState, Claim]] = {
    "an assignment": (RolloutState.QUEUED, _leased(RolloutState.QUEUED)),
    "an assignment to verify": (RolloutState.FINISHED, _leased(RolloutState.FINISHED)),
    "a renewed lease": (RolloutState.RUNNING, _renewed),
    "a renewed verification": (RolloutState.VERIFYING, _renewed),
    "a returned lease": (RolloutState.RUNNING, _returned),
    "a returned verification": (RolloutState.VERIFYING, _returned),
    "a session": (RolloutState.RUNNING, lambda c, run, row: current_lease(c, run.run_id, row.rollout_id)),
    "a step": (RolloutState.RUNNING, _step),
    "a result": (
        RolloutState.RUNNING,
        lambda c, run, row: results.report(c, run.run_id, ended(run.name, _lease_of(row), [], digest="")),
    ),
    "a verdict": (
        RolloutState.VERIFYING,
        lambda c, run, row: results.verdict(c, run.run_id, _verdict(run, row)),
    ),
    "a failed verification": (RolloutState.VERIFYING, _again),
}


async def _rollout_in(engine: AsyncEngine, run: StoredRun, state: RolloutState) -> Row:
    """A rollout of the run in a state, leased by the owner of the claims where it has a lease."""
    if state is RolloutState.QUEUED:
        [group] = await builders.accepted(engine, run, ["queued"], size=1)
        await builders.dispatch(engine, run)
        async with engine.connect() as connection:
            [rollout] = await rollouts_of(connection, group)
        return await rollout_row(engine, rollout)
    [lease, _] = await running(engine, run)
    if state is not RolloutState.RUNNING:
        assert await report(context_of(engine, run), ended(run.name, lease, [], digest=""))
    if state is RolloutState.VERIFYING:
        async with engine.begin() as connection:
            row = await rollout_row(engine, lease.rollout_id)
            assert await _leased(RolloutState.FINISHED)(connection, run, row)
    row = await rollout_row(engine, lease.rollout_id)
    assert row.state == state
    return row


@pytest.mark.parametrize("claim", CLAIMS)
async def test_a_message_about_a_rollout_of_another_run_changes_nothing(
    engine: AsyncEngine, claim: str
) -> None:
    state, act = CLAIMS[claim]
    ours = await builders.make_run(engine, small("ours"))
    theirs = await builders.make_run(engine, small("theirs"))
    row = await _rollout_in(engine, theirs, state)
    async with engine.begin() as connection:
        before = (await connection.execute(EVERYTHING)).one()
        assert not await act(connection, ours, row)
        assert (await connection.execute(EVERYTHING)).one() == before
        assert await act(connection, theirs, row), "its own run may"


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (RolloutState.RUNNING, MessageKind.STEP),
        (RolloutState.RUNNING, MessageKind.RESULT),
        (RolloutState.VERIFYING, MessageKind.VERDICT),
    ],
)
async def test_a_message_about_a_rollout_of_another_run_is_settled_for_its_sender(
    engine: AsyncEngine, state: RolloutState, kind: MessageKind
) -> None:
    ours = await builders.make_run(engine, small("ours"))
    theirs = await builders.make_run(engine, small("theirs"))
    key = _key(await _rollout_in(engine, theirs, state), kind)
    async with engine.connect() as connection:
        assert await settled(connection, ours.run_id, [key]) == {key}
        assert await settled(connection, theirs.run_id, [key]) == set()


@pytest.mark.parametrize("claim", ["an assignment", "an assignment to verify", "a failed verification"])
async def test_a_message_that_names_another_attempt_of_its_rollout_changes_nothing(
    engine: AsyncEngine, claim: str
) -> None:
    state, act = CLAIMS[claim]
    run = await builders.make_run(engine, small("ours"))
    row = await _rollout_in(engine, run, state)
    async with engine.begin() as connection:
        other = SimpleNamespace(**{**row._mapping, "attempt": row.attempt + 1})
        assert not await act(connection, run, other)
        assert await act(connection, run, row)
