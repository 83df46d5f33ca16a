"""The traps of a shell script of the tests, with those of the Python in it."""

from collections.abc import Mapping

from orchestrator.tasks.traps.fixed_text import NO_VARIABLES
from orchestrator.tasks.traps.python import python_traps
from orchestrator.tasks.traps.rules import Trap, lines_of
from orchestrator.tasks.traps.script import Reading


def shell_traps(
    file: str,
    text: str,
    agent_modules: frozenset[str],
    *,
    functions: frozenset[str] = frozenset(),
    variables: Mapping[str, str] = NO_VARIABLES,
) -> list[Trap]:
    """The traps of one script, in the order of their lines. `functions`: those of other scripts of the tests, which it may source. `variables`:
    those of its environment."""
    found = Reading(
        text, modules=agent_modules, functions=functions, variables=variables, python=python_traps
    ).found()
    lines = lines_of(text)
    return [
        Trap(
            rule=rule,
            file=file,
            line=line,
            text=lines[line].strip() if line < len(lines) else "",
            note=note,
        )
        for (line, rule), note in sorted(found.items())
    ]
