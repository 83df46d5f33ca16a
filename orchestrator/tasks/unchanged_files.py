"""Files of a solution that give nothing away, since the agent has them anyway: a solution that installs a whole program brings them unchanged."""

import posixpath
import re
from collections import Counter
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
_SOURCE: Final = re.compile(
    r"\.(c|cc|cjs|clj|cpp|cs|cxx|dart|erl|ex|f90|fs|go|h|hpp|hs|java|jl|jsx?|kts?|lua|mjs|ml|php|pl|py|r|rb|rs|scala|svelte|swift|tsx?|vue|zig)"
)
_SCRIPT: Final = "solve.sh"
_WRITTEN: Final = re.compile(r"[\w.@+/-]+")
"""A word of a script that may be a path. Linear: a word of 64 KB without a slash is read once."""
_SCRIPT_BYTES: Final = 1 << 16
"""Of scripts that are read for the folders that they name."""
_MAX_PARTS: Final = 32


def unchanged_files(bundle: Bundle) -> set[str]:
    """Paths of a solution's files with the bytes that the environment has at the same place: those that each program of a kind has (`_PROJECT`), and
    source files of a program in which the solution changes another file of the same extension. All others may be answers."""
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
    """The place is the only one that the solution's paths or its scripts name (`_places`). Most files of the extension must have one: else the
    program is the solution's own."""
    places = _places(bundle)
    found = Counter(extension for path in hidden if (extension := _extension(path)))
    placed: Counter[str] = Counter()
    same: dict[str, tuple[str, str, str]] = {}
    changed: set[tuple[str, str, str]] = set()
    for path, file in hidden.items():
        parts, extension = path.split("/"), _extension(path)
        if not extension or len(parts) > _MAX_PARTS:
            continue
        first = 3 if path.startswith("steps/") else 1
        ends = ("/".join(parts[n:]) for n in range(first, len(parts)))
        end = next((end for end in ends if end in places), None)
        if end is None or len(places[end]) > 1:
            continue
        (where,) = places[end]
        placed[extension] += 1
        program = (path.removesuffix(end), where.removesuffix(end), extension)
        if _is_equal(bundle.files[where], file):
            same[path] = program
        else:
            changed.add(program)
    return {
        path
        for path, program in same.items()
        if program in changed and 2 * placed[program[2]] >= found[program[2]]
    }


def _places(bundle: Bundle) -> dict[str, list[str]]:
    """The source files of the environment by an end of their paths: below a folder that a script of the solution names, or the whole path, if it
    has a folder. Hidden folders hold drafts and caches, no program."""
    named = _named_folders(bundle)
    places: dict[str, list[str]] = {}
    for where in bundle.files:
        if (found := SHOWN.match(where)) is None or not _extension(where):
            continue
        parts = where[found.end() :].removeprefix("files/").split("/")
        if len(parts) > _MAX_PARTS or any(part.startswith(".") for part in parts):
            continue
        for n in range(len(parts)):
            if "/".join(parts[:n]) in named or (n == 0 and len(parts) > 1):
                places.setdefault("/".join(parts[n:]), []).append(where)
    return places


def _named_folders(bundle: Bundle) -> set[str]:
    """Ends of the paths in the solution's scripts, with and without their last part, which may be a file; not those in the solution itself."""
    named: set[str] = set()
    left = _SCRIPT_BYTES
    for path, file in bundle.files.items():
        if HIDDEN.match(path) is None or not path.endswith(f"solution/{_SCRIPT}") or file.size > left:
            continue
        left -= file.size
        for written in _WRITTEN.findall(file.data.decode(errors="replace")):
            if "/" not in written:
                continue
            parts = [part for part in written.split("/") if part not in ("", ".")]
            if len(parts) > _MAX_PARTS or parts[:1] == ["solution"]:
                continue
            for n in range(len(parts)):
                named |= {"/".join(parts[n:]), "/".join(parts[n:-1])}
    return {folder for folder in named if folder and folder.split("/")[0] not in ("solution", "tests")}


def _extension(path: str) -> str:
    """The extension of a source file, empty for others: data may be the answer."""
    extension = posixpath.splitext(path)[1]
    return extension if _SOURCE.fullmatch(extension) else ""


def _is_equal(one: AnyFile, other: AnyFile) -> bool:
    return one.size == other.size and one.data == other.data
