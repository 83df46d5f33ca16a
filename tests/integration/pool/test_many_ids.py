"""Statements take as many ids as a run has: more than the 32,767 parameters of one statement."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.states import GroupState, RolloutState
from orchestrator.pool import leases, policy_versions, rescore, routes, steps, transitions
from orchestrator.pool.rescore import Chosen
from orchestrator.pool.runs import StoredRun
from orchestrator.queries import attempts
from orchestrator.queries.attempt_filters import AttemptFilters, Bound
from orchestrator.queries.submitted import submitted_groups
from orchestrator.queries.vettings import levels
from tests import builders
from tests.integration.pool.rig import small

pytestmark = [pytest.mark.anyio, pytest.mark.services]

MANY = 40_000
IDS = range(1, MANY + 1)
NAMES = tuple(f"name-{n}" for n in IDS)
PAIRS = [(n, 1) for n in IDS]
NOTHING = Bound(at=datetime(2020, 1, 1, tzinfo=UTC))
Statement = Callable[[AsyncConnection, StoredRun], Awaitable[Any]]


def exported(**chosen: Any) -> Statement:
    """The page of an export with these filters."""
    return lambda connection, run: attempts.page(connection, run, AttemptFilters(**chosen), NOTHING, None, 10)


STATEMENTS: dict[str, Statement] = {
    "submitted_groups": lambda c, run: submitted_groups(c, run.run_id, NAMES),
    "levels": lambda c, run: levels(c, run.run_id, [f"{n:064x}" for n in IDS]),
    "rollouts of an export": exported(rollouts=tuple(IDS)),
    "groups of an export": exported(groups=tuple(IDS)),
    "submissions of an export": exported(submissions=NAMES),
    "trajectories": lambda c, run: steps.trajectories(c, run.run_id, PAIRS),
    "readings": lambda c, run: steps.readings(c, run.run_id, PAIRS),
    "recorded_routes": lambda c, run: routes.recorded_routes(c, run.run_id, PAIRS),
    "for_training": lambda c, run: leases.for_training(c, run.run_id, IDS),
    "published": lambda c, run: policy_versions.published(c, run.run_id, IDS),
    "open_groups of tasks": lambda c, run: rescore.open_groups(c, run.run_id, Chosen(tasks=NAMES)),
    "open_groups of domains": lambda c, run: rescore.open_groups(c, run.run_id, Chosen(domains=NAMES)),
    "move_groups": lambda c, run: transitions.move_groups(c, IDS, GroupState.READY, GroupState.TAKEN),
    "end_members": lambda c, run: transitions.end_members(
        c, IDS, RolloutState.LOST, reason="a test", values={}
    ),
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_statement_takes_forty_thousand_ids(engine: AsyncEngine, name: str) -> None:
    run = await builders.make_run(engine, small())
    async with engine.begin() as connection:
        assert not await STATEMENTS[name](connection, run)
