"""Harbor tasks from a directory, a git repository, or a registry: a JSON list of data sets, whose tasks lie in git repositories or next to it.

    [{"name": "mine", "version": "1.0", "tasks": [{"name": "a", "git_url": "https://…", "git_commit_id": "…", "path": "tasks/a"}, …]}, …]

The tasks are copied as they are, or with named unknown keys moved (unknown_keys.py). Links that lead out of a task refuse it. The path "." is the
whole repository.
"""

import json
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import BundleLimits, check_path
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.importing import git
from orchestrator.tasks.importing.git import Git
from orchestrator.tasks.importing.place import refused
from orchestrator.tasks.importing.report import Found, Imported
from orchestrator.tasks.importing.unknown_keys import check_key, unknown_moved
from orchestrator.tasks.read_directory import read_directory
from sandboxes.text_files import read_text

Read = Callable[[Path], tuple[Task, str]]
"""Reads the task of a directory, and returns a sentence on what it changed. ValueError, one sentence, or OSError refuses it."""
MARKS: Final = ("task.toml", "instruction.md")
MAX_REGISTRY_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryTask:
    """One task of a registry. `url` None: `path` is below the registry's own folder."""

    name: str
    url: str | None
    commit: str | None
    path: str


def reading(limits: BundleLimits, move_keys: Sequence[str] = ()) -> Read:
    """Reads tasks as they are, or with these keys, KEY or TABLE.KEY, below `[metadata]` where the format does not know them (unknown_keys.py).
    ValueError for text that names no key."""
    named = {check_key(key) for key in move_keys}

    def read(directory: Path) -> tuple[Task, str]:
        bundle, note = unknown_moved(read_directory(directory, limits), named)
        return Task.of(bundle, limits=limits), note

    return read


@contextmanager
def from_directory(directory: Path, read: Read) -> Iterator[Iterator[Found | Imported]]:
    """The tasks of a directory, at any depth. ValueError if there are none."""
    yield _each(_task_directories(directory), read)


@contextmanager
def from_repository(
    url: str, revision: str | None, program: Git, read: Read
) -> Iterator[Iterator[Found | Imported]]:
    """The tasks of a git repository, which is cloned into a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="penstock-import-") as name:
        commit = program.fetch(url, revision, Path(name))
        directories = _task_directories(Path(name), named=url)
        yield _each(directories, read, base=Path(name), named=f"{url}@{commit[:12]}")


@contextmanager
def from_registry(
    file: Path, dataset: str | None, program: Git, read: Read
) -> Iterator[Iterator[Found | Imported]]:
    """The tasks of one data set of a registry. `dataset`: NAME or NAME@VERSION; it may be left out where there is only one."""
    tasks = read_registry(file, dataset)
    yield _of_registry(tasks, file.parent, program, read)


def read_registry(file: Path, dataset: str | None) -> list[RegistryTask | Imported]:
    """The tasks of a data set; an entry that is not a task's is refused alone. ValueError for a file that is not a registry."""
    if file.stat().st_size > MAX_REGISTRY_BYTES:
        raise ValueError(f"{file} has more than {MAX_REGISTRY_BYTES >> 20} MB: it is not a registry")
    try:
        found = json.loads(read_text(file))
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply for a registry") from None
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    sets = found if isinstance(found, list) else []
    if not sets or not all(isinstance(each, dict) and isinstance(each.get("tasks"), list) for each in sets):
        raise ValueError(
            f"{file} is not a registry: it must be a list of data sets, each with name and tasks"
        )
    names = [f"{each.get('name')}@{each.get('version')}" for each in sets]
    chosen = [
        each
        for each, name in zip(sets, names, strict=True)
        if dataset is None or dataset in (name, str(each.get("name")))
    ]
    if len(chosen) != 1:
        known = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        problem = f"has {len(chosen)} data sets" + (f" called {quoted(dataset)}" if dataset else "")
        raise ValueError(f"{file} {problem}: name one with --dataset, of {known}")
    if not chosen[0]["tasks"]:
        raise ValueError(f"{file}: the data set {names[sets.index(chosen[0])]} has no task")
    return [_registry_task(each, file, number) for number, each in enumerate(chosen[0]["tasks"], 1)]


def _registry_task(entry: Any, file: Path, number: int) -> RegistryTask | Imported:
    values = entry if isinstance(entry, dict) else {}
    name, path = values.get("name"), values.get("path")
    url, commit = values.get("git_url"), values.get("git_commit_id")
    try:
        if not isinstance(path, str) or not isinstance(name, str | None):
            raise ValueError("it must be an object with path and name, which are texts")
        if not isinstance(url, str | None) or not isinstance(commit, str | None):
            raise ValueError("git_url and git_commit_id must be texts")
        plain = posixpath.normpath(path) if ".." not in path.split("/") else path
        if plain != git.WHOLE:
            check_path(plain)
        if url is not None:
            git.check_url(url)
        if commit is not None:
            git.check_revision(commit)
        repository = git.name_of(url) if url is not None else file.resolve().parent.name
        own = posixpath.basename(plain) if plain != git.WHOLE else repository
        return RegistryTask(name=name or own, url=url, commit=commit, path=plain)
    except ValueError as error:
        return refused(name if isinstance(name, str) else "", f"{file} task {number}", error)


def _of_registry(
    tasks: list[RegistryTask | Imported], folder: Path, program: Git, read: Read
) -> Iterator[Found | Imported]:
    groups: dict[tuple[str, str | None], list[RegistryTask]] = {}
    for each in tasks:
        if isinstance(each, Imported):
            yield each
        elif each.url is None:
            yield _found(each.name, str(folder / each.path), folder / each.path, read, below=folder)
        else:
            groups.setdefault((each.url, each.commit), []).append(each)
    for (url, commit), members in groups.items():
        with tempfile.TemporaryDirectory(prefix="penstock-import-") as name:
            into = Path(name)
            try:
                reached = program.fetch(url, commit, into, [each.path for each in members])
            except ValueError as error:
                for each in members:
                    yield refused(each.name, f"{url} {each.path}", error)
                continue
            for each in members:
                source = f"{url}@{reached[:12]} {each.path}"
                yield _found(each.name, source, into / each.path, read, below=into)


def _task_directories(directory: Path, named: str | None = None) -> list[Path]:
    """Directories with a task's files, at any depth; not those of a task, links or hidden ones."""
    if not directory.exists():
        raise ValueError(f"{directory} does not exist: give a directory, a git URL or a registry.json")
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory: unpack an archive first, and give its folder")
    found = with_marks(directory, MARKS)
    if not found:
        raise ValueError(f"{named or directory} holds no task: a Harbor task has {' and '.join(MARKS)}")
    return found


def with_marks(directory: Path, marks: Sequence[str], *, linked: bool = False) -> list[Path]:
    """The directories that hold one of these files, at any depth, in order; none below such a one, a link or a hidden one. `linked`: also links in
    `directory` itself that lead to such a one elsewhere."""
    found: list[Path] = []
    links: list[Path] = []
    for place, folders, names in os.walk(directory):
        if any(mark in names for mark in marks):
            found.append(Path(place))
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if linked and Path(place) == directory:
            links = [Path(place, name) for name in folders if os.path.islink(Path(place, name))]
    here = {each.resolve() for each in found}
    found += [
        link for link in links if link.resolve() not in here and any((link / mark).exists() for mark in marks)
    ]
    return sorted(found)


def _each(
    directories: list[Path], read: Read, *, base: Path | None = None, named: str = ""
) -> Iterator[Found]:
    """`base`: the clone of the repository `named`."""
    for directory in directories:
        if base is None:
            yield _found(directory.resolve().name, str(directory), directory, read, below=directory)
            continue
        inside = directory.relative_to(base).as_posix()
        name = directory.name if inside != git.WHOLE else git.name_of(named.rpartition("@")[0])
        yield _found(name, f"{named} {inside}", directory, read, below=base)


def _found(name: str, source: str, directory: Path, read: Read, *, below: Path) -> Found:
    def write(staging: Path) -> str:
        if not directory.resolve().is_relative_to(below.resolve()):
            raise ValueError("its path leads out of the set through a link")
        if not directory.is_dir():
            raise ValueError("it is not there, or not a directory")
        try:
            task, note = read(directory)
        except ValueError as error:
            raise ValueError(str(error).removeprefix(f"{directory}: ")) from None
        task.write(staging)
        return note

    return Found(name=name, source=source, write=write)
