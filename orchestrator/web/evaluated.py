"""Evaluations as every look at the curves shows them: counting one reads each of its rollouts, so one that has ended is counted once, and a
look counts a bounded number. The first looks at a long run show its newest evaluations; the next ones the others too."""

from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.look.evaluations import Evaluation, Stand, some_evaluations, stands

ROLLOUTS = 2_500  # counted in one look, some 30 ms; a larger evaluation is counted by itself


@dataclass(frozen=True, slots=True)
class Known:
    """`evaluations`, ordered by suite and version; `uncounted` others were not counted yet, or not since they went on: the next look does."""

    evaluations: list[Evaluation]
    uncounted: int


@dataclass(slots=True)
class Evaluated:
    """What was counted, by run, suite and version."""

    _counted: dict[int, dict[tuple[str, int], tuple[Stand, Evaluation]]] = field(default_factory=dict)

    async def of(self, connection: AsyncConnection, run_id: int) -> Known:
        """The run's evaluations, as far as they are counted."""
        now = await stands(connection, run_id)
        counted = self._counted.setdefault(run_id, {})
        others = [each for each in now if (known := counted.get(_key(each))) is None or known[0] != each]
        chosen = _first(others)
        if chosen:
            for stand, found in zip(chosen, await some_evaluations(connection, run_id, chosen), strict=True):
                counted[_key(stand)] = stand, found
        return Known(
            [counted[_key(each)][1] for each in now if _key(each) in counted], len(others) - len(chosen)
        )


def _first(others: list[Stand]) -> list[Stand]:
    """The newest versions, as many as one look counts; in the order in which they were given."""
    chosen: set[int] = set()
    rollouts = 0
    for i in sorted(range(len(others)), key=lambda i: -others[i].version):
        rollouts += others[i].rollouts
        if chosen and rollouts > ROLLOUTS:
            break
        chosen.add(i)
    return [others[i] for i in sorted(chosen)]


def _key(stand: Stand) -> tuple[str, int]:
    return stand.suite, stand.version
