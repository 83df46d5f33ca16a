"""/api/run: how the run stands; /api/series: what it learned and where its time went; /api/curves: its train steps from one to another."""

from dataclasses import dataclass

from sqlalchemy import text

from orchestrator.flow.dispatcher import queue_settings
from orchestrator.look.curves import Curves, curves
from orchestrator.look.evaluations import Evaluation
from orchestrator.look.spending import Spending, spending
from orchestrator.look.standing import Standing, standing
from orchestrator.web.asked import Asked, look


@dataclass(frozen=True, slots=True)
class RunPage:
    """The heads of a run. Times are seconds since 1970; `slots`: concurrent rollouts of one runner, as configured."""

    run: str
    state: str
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
    max_staleness: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class Series:
    """All that is drawn over the run. `uncounted`: evaluations that the next look has too."""

    curves: Curves
    spending: Spending
    evaluations: list[Evaluation]
    uncounted: int


_HEADS = text(
    """
    SELECT extract(epoch FROM r.created)::float8 AS created, extract(epoch FROM r.ended)::float8 AS ended, q.next_seq AS dispatched,
           (SELECT max(version) FROM policy_versions v WHERE v.run_id = r.run_id AND v.superseded_by IS NULL) AS version,
           (SELECT b.batch_no + 1 FROM batches b WHERE b.run_id = r.run_id AND b.state = 'committed' ORDER BY b.batch_no DESC LIMIT 1) AS batches,
           (SELECT b.groups_so_far FROM batches b WHERE b.run_id = r.run_id AND b.state = 'committed' ORDER BY b.batch_no DESC LIMIT 1) AS trained,
           (SELECT count(*) FROM train_steps t JOIN batches b ON b.batch_id = t.batch_id AND b.state = 'committed'
             WHERE t.run_id = r.run_id) AS train_steps
    FROM runs r JOIN queue q USING (run_id) WHERE r.run_id = :run
    """
)


async def _run(asked: Asked) -> RunPage:
    config = asked.config
    heads = (await asked.connection.execute(_HEADS, {"run": asked.run.run_id})).one()
    return RunPage(
        run=asked.run.name,
        state=asked.run.state,
        created=heads.created,
        ended=heads.ended,
        model=config.policy.model,
        version=heads.version,
        batches=heads.batches or 0,
        train_steps=heads.train_steps or 0,
        dispatched=heads.dispatched,
        trained_groups=heads.trained or 0,
        slots=config.rollout.slots,
        window=config.queue.window,
        max_staleness=config.queue.max_staleness,
        standing=await standing(asked.connection, asked.run, config, queue_settings(config)),
    )


async def _series(asked: Asked) -> Series:
    run_id = asked.run.run_id
    known = await asked.site.evaluated.of(asked.connection, run_id)
    return Series(
        await curves(asked.connection, run_id, points=_points(asked)),
        await spending(asked.connection, run_id),
        known.evaluations,
        known.uncounted,
    )


async def _curves(asked: Asked) -> Curves:
    first, last = asked.number("first", 0, most=2**31 - 1), asked.number("last", 0, most=2**31 - 1)
    return await curves(
        asked.connection, asked.run.run_id, points=_points(asked), first=first or None, last=last or None
    )


def _points(asked: Asked) -> int:
    return asked.number("points", 300, least=10, most=1000)


ROUTES = [look("/api/run", _run), look("/api/series", _series), look("/api/curves", _curves)]
