"""/api/run: the status of the run; /api/series: its curves and where its time went; /api/curves: its train steps over a range."""

from dataclasses import dataclass

from orchestrator.contracts.states import RunState
from orchestrator.queries.curves import Curves, curves
from orchestrator.queries.evaluations import Evaluation
from orchestrator.queries.runs import run_heads
from orchestrator.queries.spending import Spending, spending
from orchestrator.queries.status import RunStatus, run_status
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.web.requests import Query, get


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """The heads of a run. Times are seconds since 1970; `slots`: concurrent rollouts of one runner, as configured."""

    run: str
    state: RunState
    created: float
    ended: float | None
    model: str
    version: int | None
    batches: int
    train_steps: int
    dispatched: int
    trained_groups: int
    slots: int
    window: int
    staleness_bound: int | None
    status: RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """All curves of a run. `uncounted`: evaluations that the next request counts."""

    curves: Curves
    spending: Spending
    evaluations: list[Evaluation]
    uncounted: int


async def _run(query: Query) -> RunPage:
    config = query.config
    heads = await run_heads(query.connection, query.run.run_id)
    return RunPage(
        run=query.run.name,
        state=query.run.state,
        created=heads.created,
        ended=heads.ended,
        model=config.policy.model,
        version=heads.version,
        batches=heads.batches,
        train_steps=heads.train_steps,
        dispatched=heads.dispatched,
        trained_groups=heads.trained_groups,
        slots=config.rollout.slots,
        window=config.queue.window,
        staleness_bound=config.queue.staleness_bound,
        status=await run_status(query.connection, query.run, config, QueueSettings.of(config)),
    )


async def _series(query: Query) -> Series:
    run_id = query.run.run_id
    known = await query.site.evaluation_cache.of(query.connection, run_id)
    return Series(
        curves=await curves(query.connection, run_id, points=_points(query)),
        spending=await spending(query.connection, run_id),
        evaluations=known.evaluations,
        uncounted=known.uncounted,
    )


async def _curves(query: Query) -> Curves:
    first, last = query.number("first", 0, most=2**31 - 1), query.number("last", 0, most=2**31 - 1)
    return await curves(
        query.connection, query.run.run_id, points=_points(query), first=first or None, last=last or None
    )


def _points(query: Query) -> int:
    return query.number("points", 300, least=10, most=1000)


ROUTES = [get("/api/run", _run), get("/api/series", _series), get("/api/curves", _curves)]
