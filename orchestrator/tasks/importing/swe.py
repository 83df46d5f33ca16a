"""Rows of SWE-bench and its relatives as Harbor tasks.

| environment | where | agent and tests see |
|---|---|---|
| an image by name (`docker_image`), the row's or that of `--image` | a provider that has images | the image's repository in its work directory |
| the files of the commit, from a repository on this machine (`--repositories`) | any provider | those files in /app, without history |

The hidden tests never lie in the environment: test.sh puts them into the work directory when the agent has ended, and restores the files of all named
tests, the programs that the test command names, the modules that print their results (`swe_commands.PRINTERS`) and the files that configure them
(`swe_base`). A row of SWE-smith has the fault as its patch, and its image is without it, so it needs `--repositories`.
"""

import os
import posixpath
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import tomlkit

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.importing import swe_base, swe_commands, swe_scripts
from orchestrator.tasks.importing.patch import Patch
from orchestrator.tasks.importing.report import Found, Imported
from orchestrator.tasks.importing.repository import Repositories, copy
from orchestrator.tasks.importing.swe_rows import Placed, Row, read_rows
from sandboxes.base import WORK

WORKDIR: Final = "/testbed"
_MAX_LINKS: Final = 40
"""That lead to one file, as in Linux."""
_VET: Final = "run `penstock tasks vet` before you train on it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweOptions:
    """`image`: a template of image names, with {instance_id} and {docker_id}; `workdir`: of the image's repository; `base`: the image of a Dockerfile
    over files of a repository; `command`: in place of the rows' own, their repositories', and pytest."""

    image: str | None = None
    workdir: str = WORKDIR
    base: str | None = None
    command: str | None = None
    agent_s: float
    test_s: float


def from_rows(
    file: Path, options: SweOptions, repositories: Repositories | None
) -> Iterator[Found | Imported]:
    """The tasks of a file of JSON lines."""
    for each in read_rows(file):
        yield each if isinstance(each, Imported) else _found(each, options, repositories)


def _found(placed: Placed, options: SweOptions, repositories: Repositories | None) -> Found:
    row = placed.row

    def write(staging: Path) -> str:
        command, files = swe_commands.command_of(row, options.command)
        (staging / "tests").mkdir()
        (staging / "solution").mkdir()
        if repositories is not None:
            fix, script = _of_files(row, staging, options, repositories, command, files)
            table: dict[str, Any] = {}
        else:
            fix, script = _of_image(row, staging, options, command, files)
            table = {"docker_image": _image(row, options), "workdir": options.workdir}
        written = {
            "tests/test.sh": script,
            "tests/grade.py": swe_scripts.GRADE,
            "tests/expected.json": swe_scripts.expected([*row.to_fix, *row.to_keep]),
            f"tests/{swe_base.SCRIPT}": swe_base.RESTORE,
            "solution/solve.sh": swe_scripts.SOLVE,
            "solution/fix.patch": fix,
            "instruction.md": row.statement.rstrip() + "\n",
            "task.toml": _settings(row, options, table),
        }
        for path, text in written.items():
            (staging / path).write_text(text, encoding="utf-8", errors="surrogateescape")
        return _note(fix, _programs(row, command, table.get("workdir", WORK)))

    return Found(name=row.name, source=placed.place, write=write)


def _image(row: Row, options: SweOptions) -> str | None:
    if options.image is None:
        return row.image
    docker_id = row.name.lower().replace("__", "_1776_")
    return options.image.replace("{instance_id}", row.name).replace("{docker_id}", docker_id)


def _of_image(
    row: Row, staging: Path, options: SweOptions, command: str, files: Sequence[str]
) -> tuple[str, str]:
    """(the solution's patch, test.sh)."""
    if row.breaks:
        raise ValueError("its patch makes the fault, and its image is without it: give --repositories")
    if _image(row, options) is None:
        raise ValueError(
            "it names no image (image_name, docker_image, image): give --image or --repositories"
        )
    tests, patch = Patch.of(row.tests, "test_patch"), Patch.of(row.patch, "patch")
    (staging / "tests" / swe_scripts.PATCH).write_text(tests.text, encoding="utf-8", errors="surrogateescape")
    programs = [path for path in _programs(row, command, options.workdir) if path not in patch.paths]
    old = [path for path in dict.fromkeys((*tests.paths, *files, *programs)) if path not in tests.new]
    kept = swe_base.configure(patch.paths)
    (staging / "tests" / swe_base.GIVEN).write_text(
        swe_base.given(row.commit, old=old, new=tests.new, kept=kept, changed=[*patch.paths, *tests.paths]),
        encoding="utf-8",
    )
    return patch.text, swe_scripts.with_patch(command, files, options.test_s)


def _of_files(
    row: Row,
    staging: Path,
    options: SweOptions,
    repositories: Repositories,
    command: str,
    files: Sequence[str],
) -> tuple[str, str]:
    """(the solution's patch, test.sh). Writes environment/files, tests/files and the base's files that configure the tests."""
    if row.commit is None:
        raise ValueError("it names no commit (base_commit)")
    base = repositories.files(row.repo, row.commit)
    environment, hidden = staging / "environment" / "files", staging / "tests" / "files"
    shutil.copytree(base, environment, symlinks=True)
    hidden.mkdir()
    removed: list[str] = []
    patch = Patch.of(row.patch, "patch")
    if row.breaks:
        faulty = repositories.patched(base, patch, "patch")
        fix = repositories.reverse(base, faulty, patch.paths)
        for path in patch.paths:
            (environment / path).unlink(missing_ok=True)
        copy(faulty, environment, patch.paths)
        copy(base, hidden, files)
        for path in swe_commands.files_of(row.to_fix):
            (environment / path).unlink(missing_ok=True)
    else:
        repositories.patched(base, patch, "patch")  # it must apply
        fix = patch.text
        tests = Patch.of(row.tests, "test_patch")
        copy(base, hidden, files)
        tested = repositories.patched(base, tests, "test_patch")
        copy(tested, hidden, tests.paths)
        removed = [path for path in tests.paths if not (tested / path).exists()]
        for path in removed:
            (hidden / path).unlink(missing_ok=True)
    if not any(hidden.rglob("*")):
        raise ValueError("none of its tests' files is in the repository")
    others = {*patch.paths, *removed}
    links = _place(
        base, hidden, [path for path in _programs(row, command, WORK) if path not in others], others
    )
    if options.base is not None:
        (staging / "environment" / "Dockerfile").write_text(
            f"FROM {options.base}\nWORKDIR /app\nCOPY files/ /app/\n", encoding="utf-8"
        )
    kept = swe_base.configure(patch.paths)
    given = swe_base.given(None, old=(), new=removed, kept=kept, base=base, links=links)
    (staging / "tests" / swe_base.GIVEN).write_text(given, encoding="utf-8")
    if archive := swe_base.packed(base, [*kept, *removed]):
        (staging / "tests" / swe_base.PACKED).write_bytes(archive)
    return fix, swe_scripts.with_files(command, files, options.test_s)


def _note(fix: str, programs: Collection[str]) -> str:
    """A sentence on what a task's tests leave possible. `programs`: paths that the test command may run."""
    paths = Patch.of(fix, "patch").paths
    if own := [*swe_base.configure(paths), *(path for path in paths if path in programs)]:
        shown = ", ".join(map(quoted, own[:3])) + (" …" if len(own) > 3 else "")
        return f"its fix changes {shown}, so the tests run with the agent's version, which configures them: {_VET}"
    return f"the agent's modules run in the process of its tests, and can change what that prints: {_VET}"


def _programs(row: Row, command: str, workdir: str) -> list[str]:
    """As in `swe_scripts`, and the modules of the repository that print the results. The default command has none."""
    if command == swe_commands.PYTEST:
        return []
    named = swe_scripts.programs(command, (*row.to_fix, *row.to_keep), workdir)
    return list(dict.fromkeys((*named, *swe_commands.PRINTERS.get(row.repo, ()))))


def _place(base: Path, hidden: Path, paths: Sequence[str], others: Collection[str]) -> dict[str, str]:
    """Copy those of the files that `base` has and `hidden` has not; a link within `base` as what it leads to, each into the directory to which the
    links above it lead. These links, with their targets. `others`: files and links that stay the agent's."""
    inside = base.resolve()
    links: dict[str, str] = {}
    for path in paths:
        real, above = _followed(base, path)
        found, to = base / real, hidden / real
        if not os.path.isfile(found) or not found.resolve().is_relative_to(inside):
            continue
        if real in others or any(link in others for link in above):
            continue
        links |= above
        if not os.path.lexists(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, to)
    return links


def _followed(base: Path, path: str) -> tuple[str, dict[str, str]]:
    """A path without the links above it, and those links with their targets. It may lead out of `base`."""
    links: dict[str, str] = {}
    for _ in range(_MAX_LINKS):
        above = [str(each) for each in reversed(PurePosixPath(path).parents)]
        link = next((each for each in above if (base / each).is_symlink()), None)
        if link is None or path.startswith(("/", "..")):
            break
        links[link] = os.readlink(base / link)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(link), links[link], path[len(link) + 1 :]))
    return path, links


def _settings(row: Row, options: SweOptions, environment: dict[str, Any]) -> str:
    metadata = {"name": row.name, "domain": "coding", "repo": row.repo}
    if row.commit is not None:
        metadata["base_commit"] = row.commit
    tables: dict[str, Any] = {
        "version": "1.0",
        "metadata": metadata,
        "agent": {"timeout_sec": options.agent_s},
        "verifier": {"timeout_sec": options.test_s},
    }
    return tomlkit.dumps({**tables, "environment": environment} if environment else tables)
