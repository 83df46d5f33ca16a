"""One run as a line of a comparison: its progress, the metrics of its last train steps, its results on held-out tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.ids import EVERY_DOMAIN
from orchestrator.contracts.states import RunState
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.curves import curves
from orchestrator.queries.evaluations import EvaluationPoint, evaluations
from orchestrator.queries.runs import run_heads

KEYS = ("performance", "reward", "entropy", "kl_k1", "mean_abs_dlogprob", "wall_s")
"""The keys of `curves` that are compared by default."""
LAST = 10  # bins: the end of a curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """`train_steps`: how many count, without undone ones; `last_step`: the number of the last, 0 without any. `means`: of each key over the
    last bins of its curve, None if the run reports no value. `lines`: the whole curves, over `steps`. `heldout`: the point over
    all domains of every suite on its newest version that no rewind undid."""

    run: str
    state: RunState
    version: int | None
    batches: int
    train_steps: int
    last_step: int
    trained_groups: int
    means: dict[str, float | None]
    steps: list[float]
    lines: dict[str, list[float | None]]
    heldout: list[EvaluationPoint]


async def compared(connection: AsyncConnection, run: StoredRun, keys: Sequence[str] = KEYS) -> Compared:
    """Read the run. At most 300 points per curve."""
    heads = await run_heads(connection, run.run_id)
    found = await curves(connection, run.run_id)
    lines = {line.key: line.mean for line in found.lines if not line.part and line.key in keys}
    newest: dict[str, EvaluationPoint] = {}
    for each in await evaluations(connection, run.run_id):
        for point in each.points if each.superseded_by is None else ():
            if point.domain == EVERY_DOMAIN:
                newest[each.suite] = point  # ordered by version
    return Compared(
        run=run.name,
        state=run.state,
        version=heads.version,
        batches=heads.batches,
        train_steps=heads.train_steps,
        last_step=found.last or 0,
        trained_groups=heads.trained_groups,
        means={key: _end(lines.get(key, [])) for key in keys},
        steps=found.steps,
        lines=lines,
        heldout=[newest[suite] for suite in sorted(newest)],
    )


def _end(values: Sequence[float | None]) -> float | None:
    """The mean of the last bins that have a value."""
    last = [value for value in values if value is not None][-LAST:]
    return fmean(last) if last else None
