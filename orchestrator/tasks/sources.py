"""Read tasks from directories, folders of directories and JSONL files, and find those that a run accepts."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import faults
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.harbor import Task, each_jsonl, load
from orchestrator.tasks.misplaced import IMPORT, OLDER
from orchestrator.tasks.read_directory import Shared
from orchestrator.tasks.unfit import unfit_for_any

Refusal = tuple[str, ...]
"""The problems of one refused task, a sentence each, with its place."""


def each(sources: Iterable[Path], limits: BundleLimits | None = None) -> Iterator[tuple[str, Task | str]]:
    """Tasks from directories (one task, or a folder that holds tasks at any depth) and JSONL files, with their places: a directory, or a file and a
    line. Below a task, and below hidden folders and linked ones, none is looked for. An unreadable task, or one above `limits`, gives a sentence that
    names it. Raises ValueError for a source that holds no tasks."""
    shared: Shared = {}
    for source in sources:
        if not source.exists():
            raise ValueError(f"{source} does not exist")
        if source.is_file():
            if source.suffix != ".jsonl":
                raise ValueError(
                    f"{source} is not a task: give a task directory, a folder of them, or a .jsonl file"
                )
            yield from each_jsonl(source)
        elif _is_task(source):
            yield str(source), _loaded(source, limits, shared)
        else:
            found, older = _searched(source)
            if not found:
                if older:
                    raise ValueError(f"{source} holds {IMPORT}")
                raise ValueError(
                    f"{source} holds no task: a task directory has task.toml, instruction.md and tests/test.sh"
                )
            for directory in found:
                yield str(directory), _loaded(directory, limits, shared)


def _is_task(directory: Path) -> bool:
    return any((directory / mark).exists() for mark in ("task.toml", "instruction.md"))


def _searched(source: Path) -> tuple[list[Path], bool]:
    """The task directories of a folder, in order, and whether there are tasks of the older form."""
    found: list[Path] = []
    older = False
    for place, folders, names in os.walk(source):
        older = older or OLDER in names
        tasks = {name for name in folders if _is_task(Path(place, name))}
        found += (Path(place, name) for name in tasks)
        folders[:] = [name for name in folders if name not in tasks and not name.startswith(".")]
    return sorted(found), older


def _loaded(directory: Path, limits: BundleLimits | None, shared: Shared) -> Task | str:
    try:
        return load(directory, limits, shared)
    except ValueError as error:
        return str(error)


def read(sources: Iterable[Path], limits: BundleLimits | None = None) -> Iterator[Task]:
    """`each`, tasks only. Raises ValueError that names the first unreadable one."""
    for _, found in each(sources, limits):
        if isinstance(found, str):
            raise ValueError(found)
        yield found


def admissible(
    found_at: Iterable[tuple[str, Task | str]], section: SandboxSection, scaffolds: Sequence[str] = ()
) -> tuple[list[Task], list[Refusal]]:
    """From the results of `each`: the tasks that a run with such sandboxes accepts, and the faults of each of the others, a sentence each.
    `scaffolds`: those that the tasks may get."""
    tasks: list[Task] = []
    refused: list[Refusal] = []
    for location, found in found_at:
        if isinstance(found, str):
            refused.append((found,))
        elif problems := tuple(
            f"{location or f'task {found.name}'}: {fault}"
            for fault in list(faults(found, section)) or dict.fromkeys(unfit_for_any(found, scaffolds))
        ):
            refused.append(problems)
        else:
            tasks.append(found)
    return tasks, refused


def together(refused: Sequence[Refusal], rest: str) -> str:
    """All problems, each on a line of its own."""
    lines = [problem for each in refused for problem in each]
    if len(lines) == 1:
        return lines[0]
    tasks = "1 task" if len(refused) == 1 else f"{len(refused)} tasks"
    return f"{tasks} cannot be taken, {rest}:" + "".join(f"\n  {line}" for line in lines)
