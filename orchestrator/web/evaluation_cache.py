"""Evaluations for the curves. Counting an evaluation reads each of its rollouts, so an ended one is counted once, and a request counts a
bounded number. The first requests to a long run return its newest evaluations, later ones the others too."""

from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.queries.evaluations import (
    Evaluation,
    EvaluationProgress,
    evaluation_progress,
    some_evaluations,
)

ROLLOUTS = 2_500  # counted in one request, some 30 ms; a larger evaluation gets a request of its own


@dataclass(frozen=True, slots=True)
class CountedEvaluations:
    """`evaluations`, ordered by suite and version; `uncounted`: evaluations not counted since they last changed, left to the next
    request."""

    evaluations: list[Evaluation]
    uncounted: int


@dataclass(slots=True)
class EvaluationCache:
    """Counted evaluations by run, suite and version."""

    _counted: dict[int, dict[tuple[str, int], tuple[EvaluationProgress, Evaluation]]] = field(
        default_factory=dict
    )

    async def of(self, connection: AsyncConnection, run_id: int) -> CountedEvaluations:
        """The run's evaluations that are counted so far."""
        current = await evaluation_progress(connection, run_id)
        counted = self._counted.setdefault(run_id, {})
        changed = [each for each in current if (known := counted.get(_key(each))) is None or known[0] != each]
        chosen = _first(changed)
        if chosen:
            for progress, found in zip(
                chosen, await some_evaluations(connection, run_id, chosen), strict=True
            ):
                counted[_key(progress)] = progress, found
        return CountedEvaluations(
            [counted[_key(each)][1] for each in current if _key(each) in counted], len(changed) - len(chosen)
        )


def _first(others: list[EvaluationProgress]) -> list[EvaluationProgress]:
    """The newest versions, as many as one request counts, in their given order."""
    chosen: set[int] = set()
    rollouts = 0
    for i in sorted(range(len(others)), key=lambda i: -others[i].version):
        rollouts += others[i].rollouts
        if chosen and rollouts > ROLLOUTS:
            break
        chosen.add(i)
    return [others[i] for i in sorted(chosen)]


def _key(progress: EvaluationProgress) -> tuple[str, int]:
    return progress.suite, progress.version
