"""Whether a scaffold can run a task: its program may not be given what the task brings."""

from collections.abc import Iterable, Iterator, Mapping

from scaffolds.find import find

from orchestrator.tasks.extras import mcp_servers, refusals, replaced, skills_dir
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.settings import variables_of


def unfit(task: Task, scaffold: str) -> Iterator[str]:
    """Why it cannot, as sentences. Only a task with servers, skills or variables loads the scaffold, with the ValueError of `find`."""
    table = task.settings.environment
    variables = variables_of(table)
    if mcp_servers(table) or skills_dir(table) or variables:
        manifest = find(scaffold).manifest
        for problem in (*refusals(table, manifest), *replaced(variables, manifest)):
            yield f"task.toml: {problem}"


def unfit_for_any(task: Task, scaffolds: Iterable[str]) -> Iterator[str]:
    """`unfit` for each scaffold that the task may get. Intake alone judges by a scaffold that cannot be loaded here."""
    for scaffold in scaffolds:
        try:
            yield from unfit(task, scaffold)
        except (ValueError, OSError):
            continue


def drawn(shares: Mapping[str, float]) -> tuple[str, ...]:
    """The scaffolds that a task without one of its own may get."""
    return tuple(name for name, share in shares.items() if share > 0)
