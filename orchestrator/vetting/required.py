"""Levels at publish: those in the files next to the tasks travel with the messages; a task below the level that the run requires is named."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.vetting import Level, Vetting
from orchestrator.queries.vettings import levels
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.vetting.required import check_level
from orchestrator.vetting.records import FileRecords, vettings_of


def check_required(of_run: Level, of_file: Level, otherwise: str = "nothing is published") -> None:
    """ConfigurationError if the file requires more of a task than its run, which keeps the level that it began with."""
    if not of_run.reaches(of_file):
        raise ConfigurationError(
            f'{otherwise}: the file has tasks.require = "{of_file}", but the run began with "{of_run}" and keeps that: begin a new run with '
            f'another run.name, or write "{of_run}" into the file'
        )


def filed(sources: Iterable[Path], verdicts: Path | None = None) -> dict[str, Vetting]:
    """The levels in `verdicts`, else in the files next to the sources, by content hash. Those of older controls are left out."""
    found = vettings_of(sources) if verdicts is None else FileRecords(verdicts).vettings()
    return {sha256: vetting for sha256, vetting in found.items() if vetting.counts_for(sha256)}


async def kept(connection: AsyncConnection, run_id: int, tasks: Sequence[Task]) -> dict[str, Vetting]:
    """The levels of these tasks in the rows of a run."""
    return await levels(connection, run_id, {task.content_hash for task in tasks})


def below(tasks: Iterable[Task], required: Level, *known: Mapping[str, Vetting]) -> list[str]:
    """A sentence for each task that does not have the level."""
    problems = []
    for task in tasks:
        try:
            check_level(
                task.name, task.content_hash, required, *(each.get(task.content_hash) for each in known)
            )
        except ValueError as error:
            problems.append(str(error))
    return problems
