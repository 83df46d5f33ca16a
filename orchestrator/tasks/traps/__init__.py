"""Traps of task authors: parts of a task's tests that can give a reward without the work, by file and line.

The check reads and never runs. It sees text, not meaning: ops/guides/traps.md lists its limits, and `orchestrator.probing` tries the rest.
"""

import re
from dataclasses import replace
from typing import Final

from orchestrator.tasks.harbor import SOLUTION, STEPS, Task
from orchestrator.tasks.traps.draws import seeds_of
from orchestrator.tasks.traps.image_data import image_data_traps
from orchestrator.tasks.traps.programs_of_tests import Language, Programs
from orchestrator.tasks.traps.python import python_traps
from orchestrator.tasks.traps.rules import ADVICE, Rule, Trap, lines_of
from orchestrator.tasks.traps.shell import shell_traps
from orchestrator.tasks.traps.shellcheck import shellcheck_traps
from orchestrator.tasks.traps.work_place import by_other_name, work_place

_ALLOWED: Final = re.compile(r"#\s*penstock-allow\s+(PT\d{3}(?:\s*,\s*PT\d{3})*)\s*:\s*\S")
_OTHER: Final = "{} is in a language that this check does not read, so it was not checked"
_LARGE: Final = "it is larger than 1 MiB, so it was not checked"
_TESTS: Final = re.compile(r"(steps/[^/]+/)?tests/")
_READ_BYTES: Final = 1 << 20
"""Larger files of the tests are data, not programs."""
_MODULE: Final = re.compile(r"\b([A-Za-z_]\w*)\.py\b")


def traps_of(task: Task) -> list[Trap]:
    """The traps in a task's tests, in the order of files and lines, without those that a comment allows."""
    found: list[Trap] = []
    sizes = {path: file.size for path, file in task.files.items() if _TESTS.match(path)}
    tests = {path: task.files[path].data for path, size in sizes.items() if size <= _READ_BYTES}
    modules = _agent_modules(task) - {path.rpartition("/")[2].removesuffix(".py") for path in tests}
    programs = Programs(tests)
    trusting = list(image_data_traps(task, tests))
    seeded = frozenset(
        module
        for path, body in tests.items()
        if path.endswith("/conftest.py")
        for module in seeds_of(body.decode(errors="replace"))
    )
    work = work_place(task)
    variables = {name: value for name, value in task.settings.verifier.env.items() if name == "TEST_DIR"}
    for path, body in sorted(tests.items()):
        written = body.decode(errors="replace")
        text = by_other_name(written, work)
        language = programs.language(path)
        if language is Language.SHELL:
            traps = shell_traps(path, text, modules, functions=programs.functions, variables=variables)
            lines = {trap.line for trap in traps}
            traps += [trap for trap in shellcheck_traps(path, text) if trap.line not in lines]
            traps += [_unread(path, text, line, _OTHER.format(name)) for line, name in programs.unread(path)]
        elif language is Language.PYTHON:
            traps = python_traps(path, text, modules, seeded=seeded)
        else:
            continue
        traps += [trap for trap in trusting if trap.file == path]
        traps = [_as_written(trap, written) if work else trap for trap in traps]
        found += [trap for trap in sorted(traps, key=lambda t: (t.line, t.rule)) if not _allowed(text, trap)]
    large = sorted(path for path in sizes.keys() - tests if path.endswith((".sh", ".bash", ".py")))
    return found + [_unread(path, "", 1, _LARGE) for path in large]


def _unread(path: str, text: str, line: int, note: str) -> Trap:
    return Trap(rule=Rule.UNREADABLE, file=path, line=line, text=_at(text, line), note=note)


def _at(text: str, line: int) -> str:
    return [*lines_of(text), ""][line].strip()


def _as_written(trap: Trap, text: str) -> Trap:
    return replace(trap, text=_at(text, trap.line))


def _agent_modules(task: Task) -> frozenset[str]:
    """Modules that the agent writes or changes: those of the environment, and those that the solution mentions."""
    names = {
        path.rpartition("/")[2].removesuffix(".py")
        for path in task.files
        if path.startswith("environment/") and path.endswith(".py")
    }
    for path, file in task.files.items():
        if path == SOLUTION or (path.startswith(STEPS) and path.endswith(f"/{SOLUTION}")):
            names |= set(_MODULE.findall(file.data.decode(errors="replace")))
    return frozenset(names)


def _allowed(text: str, trap: Trap) -> bool:
    lines = [*lines_of(text), ""]
    return any(
        trap.rule in re.split(r"\s*,\s*", found.group(1))
        for line in lines[max(trap.line - 1, 0) : trap.line + 1]
        if (found := _ALLOWED.search(line))
    )


__all__ = ["ADVICE", "Rule", "Trap", "traps_of"]
