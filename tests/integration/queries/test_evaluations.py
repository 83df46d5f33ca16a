"""Held-out success over policy versions, as the dashboard, the exports and `penstock eval` read it."""

from datetime import UTC, datetime

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import Purpose
from orchestrator.pool import batches
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.rewind import FIRST, rewind
from orchestrator.queries.evaluations import LeftOut, evaluation_progress, evaluations, wilson
from orchestrator.queries.scalars import run_scalars
from orchestrator.scheduling.queue_policies import queue_policy
from tests import builders
from tests.integration.pool.rig import small
from tests.integration.queries.evaluations_rig import evaluated

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


async def test_points_are_counted_per_suite_version_and_domain_with_wilsons_interval(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    await evaluated(engine, run, "held", 0, {"coding": (0.0, 0.0, 1.0, 0.5), "agent": (1.0,)})
    await evaluated(engine, run, "held", 3, {"coding": (1.0, 1.0)})
    await evaluated(engine, run, "other", 3, {"coding": (0.0,)})
    async with engine.connect() as connection:
        found = await evaluations(connection, run.run_id)
        one = await evaluations(connection, run.run_id, suite="held", version=3)
    assert [(each.suite, each.version, each.groups, each.scored, each.open) for each in found] == [
        ("held", 0, 5, 5, 0),
        ("held", 3, 2, 2, 0),
        ("other", 3, 1, 1, 0),
    ]
    first = {point.domain: point for point in found[0].points}
    assert list(first) == ["agent", "coding", "all"]
    assert (first["coding"].n, first["coding"].successes, first["coding"].success, first["coding"].mean) == (
        4,
        1,
        0.25,
        0.375,
    )
    assert (first["all"].n, first["all"].successes) == (5, 2)
    assert (first["all"].low, first["all"].high) == wilson(2, 5)
    assert [each.version for each in one] == [3] and one[0].last is not None
    assert msgspec.json.decode(msgspec.json.encode(found))[2]["points"][0]["success"] == 0.0


async def test_identical_tries_of_a_task_narrow_no_interval(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    await evaluated(
        engine,
        run,
        "held",
        1,
        {"coding": (1.0,) * 3 + (0.0,) * 3, "agent": (1.0,) * 6, "browser": (1.0,) * 3},
        size=3,
    )
    async with engine.connect() as connection:
        [held] = await evaluations(connection, run.run_id)
    found = {point.domain: (point.low, point.high) for point in held.points}
    assert {point.domain: point.n for point in held.points} == {
        "agent": 6,
        "browser": 3,
        "coding": 6,
        "all": 15,
    }
    assert found["coding"] == pytest.approx(wilson(1, 2))
    assert found["agent"] == pytest.approx(wilson(2, 2))
    assert found["browser"] == pytest.approx(wilson(3, 3)), "of one task alone, the tries are independent"
    assert found["all"] == pytest.approx(wilson(4, 5))


async def test_rollouts_without_a_result_and_open_ones_are_counted_next_to_the_points(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    await evaluated(engine, run, "held", 1, {"coding": (1.0, 0.0)})
    await evaluated(engine, run, "void", 1, {"coding": (1.0, 1.0)}, made_by=2)
    await builders.accepted(
        engine, run, ["open"], size=2, purpose=Purpose.EVAL, pinned_version=1, label="held"
    )
    await builders.accepted(engine, run, ["unpinned"], purpose=Purpose.EVAL, label="held")
    async with engine.connect() as connection:
        held, void = await evaluations(connection, run.run_id)
    assert (held.groups, held.scored, held.unscored, held.open, held.last) == (3, 2, 0, 1, None)
    assert (void.groups, void.scored, void.unscored, void.points) == (2, 0, 2, [])
    assert (held.rollouts, held.judged, held.left_out, held.complete) == (4, 2, [], False)
    assert held.points[-1].wanted == 4, "open ones are wanted too"
    assert void.left_out == [LeftOut("coding", "wrong_version", 2)] and not void.complete


async def test_rollouts_that_got_no_verdict_are_counted_by_domain_and_failure_class(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    await evaluated(engine, run, "held", 1, {"coding": (1.0, 0.0, None, None)}, size=4)
    await evaluated(engine, run, "held", 1, {"agent": (None, None)}, size=2)
    await evaluated(engine, run, "whole", 1, {"coding": (1.0, 0.0)}, size=2)
    async with engine.connect() as connection:
        held, whole = await evaluations(connection, run.run_id)
    assert (held.groups, held.scored, held.unscored, held.open) == (2, 1, 1, 0)
    assert (held.rollouts, held.judged, held.complete) == (6, 2, False)
    assert held.left_out == [
        LeftOut("agent", "verifier_failure", 2),
        LeftOut("coding", "verifier_failure", 2),
    ]
    assert held.without_verdict == {"verifier_failure": 4}
    assert [(point.domain, point.wanted, point.n, point.successes) for point in held.points] == [
        ("coding", 4, 2, 1),
        ("all", 6, 2, 1),
    ]
    assert (held.points[0].low, held.points[0].high) == wilson(1, 2), "the interval is of the judged ones"
    assert whole.complete and whole.left_out == [] and whole.points[-1].wanted == whole.points[-1].n == 2


async def test_weights_that_a_rewind_published_again_stand_at_the_train_step_that_made_them(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())

    async def trained(*versions: int) -> None:
        for version in versions:
            await builders.ready_groups(engine, run, [f"{version}{name}" for name in "ab"], builders.Author())
            new = NewVersion(version=version, parent=version - 1, path=f"/v{version}", manifest_sha="11")
            async with engine.begin() as connection:
                batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
                assert batch is not None
                assert await batches.commit(
                    connection, run.run_id, run.name, batch=batch, new=new, metrics=[{}, {}], subject="policy"
                )

    async def rewound(batch_no: int) -> None:
        async with engine.begin() as connection:
            await rewind(connection, run.run_id, batch_no, "policy", "why", lambda version: True)

    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
    await trained(1, 2, 3)
    await rewound(1)  # version 4: the weights of version 2
    await trained(5)
    await rewound(0)  # version 6: those of version 1
    await trained(7)  # batch 1 has other weights now
    await rewound(FIRST)  # version 8: the first ones
    for version in range(9):
        await evaluated(engine, run, "held", version, {"coding": (1.0,)})
    async with engine.connect() as connection:
        found = await evaluations(connection, run.run_id)
        scalars = await run_scalars(connection, run, datetime.now(UTC))
        progress = await evaluation_progress(connection, run.run_id)
    assert [each.train_step for each in found] == [None, 2, 4, 6, 4, 8, 2, 10, None]
    assert [each.superseded_by for each in found] == [None, 8, 6, 4, 6, 6, 8, 8, None]
    assert [each.superseded_by for each in progress] == [each.superseded_by for each in found]
    assert [row.step for row in scalars.rows if row.axis == "policy_version"] == [0, 8]


def test_wilsons_interval_holds_the_share_and_stays_within_0_and_1() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    for n in (1, 7, 200):
        for successes in range(n + 1):
            low, high = wilson(successes, n)
            assert 0 <= low <= successes / n <= high <= 1
