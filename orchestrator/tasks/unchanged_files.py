"""Files of a solution that give nothing away, since the agent has them anyway: a solution that installs a whole program brings them unchanged."""

import posixpath
import re
from itertools import takewhile
from typing import Final

from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.message import MAX_MESSAGE_BYTES
from sandboxes.base import AnyFile

SHOWN: Final = re.compile(r"(environment|steps/[^/]+/workdir)/")
HIDDEN: Final = re.compile(r"(steps/[^/]+/)?(tests|solution)/")
_PROJECT: Final = re.compile(
    r"package(-lock)?\.json|yarn\.lock|pnpm-lock\.yaml|[jt]sconfig(\.\w+)?\.json|Cargo\.(toml|lock)|go\.(mod|sum)|pyproject\.toml|poetry\.lock|uv\.lock"
    r"|setup\.(py|cfg)|pom\.xml|Gemfile(\.lock)?|composer\.(json|lock)|CMakeLists\.txt|(LICEN[CS]E|COPYING|NOTICE)(\.\w+)?|__init__\.py|\.gitignore"
    r"|requirements[\w.-]*\.txt|Pipfile(\.lock)?|manage\.py|(GNU)?[Mm]akefile|Dockerfile|\.dockerignore|README(\.\w+)?|[\w.-]+\.config\.[cm]?[jt]s"
    r"|\.(eslint|prettier)rc(\.\w+)?|(build|settings)\.gradle(\.kts)?|[\w.-]+\.(csproj|sln)|mix\.(exs|lock)|pubspec\.(yaml|lock)"
)
"""Names of files that each program of a kind has. A solution that brings a whole program brings them unchanged."""
_SCRIPT: Final = "solve.sh"


def unchanged_files(bundle: Bundle) -> set[str]:
    """Paths of a solution's files with the bytes that the environment has at the same place: those that each program of a kind has (`_PROJECT`), and
    those of a program in which the solution changes another file of the same extension. All others may be answers."""
    hidden = {
        path: file
        for path, file in bundle.files.items()
        if (found := HIDDEN.match(path)) is not None
        and found[2] == "solution"
        and not path.endswith(f"/{_SCRIPT}")
        and file.size <= MAX_MESSAGE_BYTES
    }
    return _of_project(bundle, hidden) | _of_program(bundle, hidden)


def _of_project(bundle: Bundle, hidden: dict[str, AnyFile]) -> set[str]:
    """The place is that of the longest path which the environment has."""
    shown: dict[str, list[AnyFile]] = {}
    for where, file in bundle.files.items():
        if (found := SHOWN.match(where)) is not None and _PROJECT.fullmatch(posixpath.basename(where)):
            shown.setdefault(where[found.end() :].removeprefix("files/"), []).append(file)
    same = set()
    for path, file in hidden.items():
        parts = path.split("/")
        if not _PROJECT.fullmatch(parts[-1]):
            continue
        first = 3 if path.startswith("steps/") else 1
        ends = ("/".join(parts[n:]) for n in range(first, len(parts)))
        twins = next((shown[end] for end in ends if end in shown), [])
        if twins and all(_is_equal(twin, file) for twin in twins):
            same.add(path)
    return same


def _of_program(bundle: Bundle, hidden: dict[str, AnyFile]) -> set[str]:
    """The place is that of the only file with the longest common end of the path."""
    named: dict[str, list[str]] = {posixpath.basename(path): [] for path in hidden}
    for where in bundle.files:
        if (name := posixpath.basename(where)) in named and SHOWN.match(where):
            named[name].append(where)
    same: dict[str, tuple[str, ...]] = {}
    changed: set[tuple[str, ...]] = set()
    for path, file in hidden.items():
        common = [_common(path, where) for where in named[posixpath.basename(path)]]
        extension = posixpath.splitext(path)[1]
        if not extension or not common or common.count(max(common)) > 1:
            continue
        where = named[posixpath.basename(path)][common.index(max(common))]
        # The program's folder in the solution, and in the environment.
        program = (*("/".join(each.split("/")[: -max(common)]) for each in (path, where)), extension)
        if _is_equal(bundle.files[where], file):
            same[path] = program
        else:
            changed.add(program)
    return {path for path, program in same.items() if program in changed}


def _common(path: str, where: str) -> int:
    """How many parts at the end of two paths, below the solution and the environment, are the same."""
    hidden, shown = HIDDEN.match(path), SHOWN.match(where)
    assert hidden is not None and shown is not None
    ends = zip(*(reversed(each.string[each.end() :].split("/")) for each in (hidden, shown)), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))


def _is_equal(one: AnyFile, other: AnyFile) -> bool:
    return one.size == other.size and one.data == other.data
