"""Evaluations in the data pool, written through its own functions: groups of `size` rollouts, one per performance."""

from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import Purpose
from orchestrator.pool.dispatch import dispatch_other
from orchestrator.pool.runs import StoredRun
from tests import builders
from tests.integration.pool.rig import context_of, ended, record, report, take, verify


async def evaluated(
    engine: AsyncEngine,
    run: StoredRun,
    suite: str,
    version: int,
    performances: Mapping[str, Sequence[float | None]],
    *,
    size: int = 1,
    submissions: Sequence[str] = (),
    made_by: int | None = None,
) -> None:
    """`suite` on `version`, by domain; None: every verification of the rollout fails. `submissions`: names for the groups of each domain.
    `made_by`: the version that the tokens are of, where that is another one (it voids the groups)."""
    context = context_of(engine, run)
    author = builders.Author(turns=1, version=version if made_by is None else made_by)
    for domain, values in performances.items():
        names = [f"{suite}:{version}:{domain}:{number}" for number in range(len(values) // size)]
        await builders.accepted(
            engine,
            run,
            submissions or names,
            domain=domain,
            size=size,
            purpose=Purpose.EVAL,
            pinned_version=version,
            label=suite,
        )
        async with engine.begin() as connection:
            assigned = await dispatch_other(connection, run.run_id, 64)
        for assignment, performance in zip(assigned, values, strict=True):
            async with engine.begin() as connection:
                lease = await take(connection, assignment.rollout_id)
            assert lease is not None
            written = author.trajectory(lease, run.name, author.ids(8, 9))
            await record(engine, run, written)
            assert await report(context, ended(run.name, lease, written))
            for _ in range(context.config.queue.max_attempts if performance is None else 1):
                await verify(context, assignment.rollout_id, performance)
