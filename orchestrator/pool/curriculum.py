"""The current stage of a run, and the groups that wait for each stage. Read from rows alone, so that kills and rewinds change nothing.

A run of one stage does not use this: intake accepted only tasks of the stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BatchState
from orchestrator.pool.tables import batches
from orchestrator.settings.curriculum import StageSection

# Steps from one kind to the next in the index groups_of_kind: one read per kind, however many groups wait.
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
class TaskKind:
    """The properties that decide in which stages a task trains."""

    domain: str
    difficulty: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The number of the current stage, and the kinds of accepted training groups: those of this stage, those of later stages only, and those
    whose stages are all over."""

    number: int
    present: Sequence[TaskKind]
    later: Sequence[TaskKind]
    passed: Sequence[TaskKind]


async def stage_number(connection: AsyncConnection, run_id: int, stages: StageSection) -> int:
    """The number of the current stage."""
    if not stages.then:
        return 0
    committed = await connection.scalar(
        select(func.count()).where(batches.c.run_id == run_id, batches.c.state == BatchState.COMMITTED)
    )
    return stages.number(int(committed or 0))


async def waiting(connection: AsyncConnection, run_id: int, stages: StageSection) -> Waiting:
    """The waiting groups in a run of several stages. Without the lock of the queue row the result may be outdated at once."""
    number = await stage_number(connection, run_id, stages)
    kinds = [
        TaskKind(row.domain, row.difficulty) for row in await connection.execute(_KINDS, {"run": run_id})
    ]
    present: list[TaskKind] = []
    later: list[TaskKind] = []
    passed: list[TaskKind] = []
    for kind in kinds:
        accepted_by = [stage.takes(kind.domain, kind.difficulty) for stage in stages.all[number:]]
        (present if accepted_by[0] else later if any(accepted_by) else passed).append(kind)
    return Waiting(number=number, present=present, later=later, passed=passed)
