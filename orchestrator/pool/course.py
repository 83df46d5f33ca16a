"""Which stage of a run is on, and what waits for which: read from rows alone, so that kills and rewinds change nothing.

A run of one stage asks nothing here: intake took only what the stage takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BatchState
from orchestrator.course import StageSection
from orchestrator.pool.tables import batches

# From one kind to the next in the index groups_of_kind: as many reads as there are kinds, however many groups wait.
_KINDS = text(
    """
    WITH RECURSIVE kinds AS (
      (SELECT domain, difficulty FROM groups WHERE run_id = :run AND state = 'accepted' AND difficulty IS NOT NULL
        ORDER BY difficulty, domain LIMIT 1)
      UNION ALL
      SELECT next.domain, next.difficulty FROM kinds CROSS JOIN LATERAL (
        SELECT g.domain, g.difficulty FROM groups g WHERE g.run_id = :run AND g.state = 'accepted' AND g.difficulty IS NOT NULL
           AND (g.difficulty, g.domain) > (kinds.difficulty, kinds.domain)
         ORDER BY g.difficulty, g.domain LIMIT 1) next)
    SELECT domain, difficulty FROM kinds
    """
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides in which stages a task trains."""

    domain: str
    difficulty: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The stage that is on, by its number, and the kinds of accepted training groups: its own, those of later stages alone, those whose stages
    are all over."""

    number: int
    present: Sequence[Kind]
    later: Sequence[Kind]
    passed: Sequence[Kind]


async def stage_number(connection: AsyncConnection, run_id: int, course: StageSection) -> int:
    """The number of the stage that is on."""
    if not course.then:
        return 0
    committed = await connection.scalar(
        select(func.count()).where(batches.c.run_id == run_id, batches.c.state == BatchState.COMMITTED)
    )
    return course.number(int(committed or 0))


async def waiting(connection: AsyncConnection, run_id: int, course: StageSection) -> Waiting:
    """What waits in a run of several stages. Without the lock of the queue row it may be gone a moment later."""
    number = await stage_number(connection, run_id, course)
    kinds = [Kind(row.domain, row.difficulty) for row in await connection.execute(_KINDS, {"run": run_id})]
    by_place: tuple[list[Kind], list[Kind], list[Kind]] = ([], [], [])
    for kind in kinds:
        left = [stage.takes(kind.domain, kind.difficulty) for stage in course.all[number:]]
        by_place[0 if left[0] else 1 if any(left) else 2].append(kind)
    return Waiting(number, *by_place)
