"""Writes imported tasks below one directory.

Each task is written under another name and renamed, so a directory is a whole task or absent, and an interrupted import continues. A directory that
is there stays: with the same content the task is `unchanged`, else it is refused. A name with other characters than a directory has here, such as
spaces, gets a - in their place.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.contracts.quote import quoted
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.importing.report import Found, Imported, ImportOutcome
from orchestrator.tasks.read_directory import read_directory

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,199}")
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_.@+=-]+")


def import_all(
    found: Iterable[Found | Imported], to: Path, sandbox: SandboxSection, limits: BundleLimits
) -> Iterator[Imported]:
    """Import the tasks one by one. Those that were refused before pass through. OSError where `to` cannot be written."""
    to.mkdir(parents=True, exist_ok=True)
    seen: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix=".importing-", dir=to) as directory:
        for number, each in enumerate(found):
            if isinstance(each, Imported):
                yield each
                continue
            each = replace(each, name=_for_directory(each.name))
            staging = Path(directory, str(number))
            staging.mkdir()
            try:
                if (first := seen.setdefault(each.name, each.source)) != each.source:
                    raise ValueError(f"{first} has the same name: import one of them into another directory")
                yield _placed(each, staging, to, sandbox, limits)
            except (ValueError, OSError) as error:
                yield refused(each.name, each.source, error)
            finally:
                shutil.rmtree(staging, ignore_errors=True)


def refused(name: str, source: str, error: Exception) -> Imported:
    """The result of a task that is not imported."""
    reason = (
        f"{error.filename or source}: {error.strerror}"
        if isinstance(error, OSError) and error.strerror
        else str(error)
    )
    return Imported(name=name, source=source, outcome=ImportOutcome.REFUSED, reason=reason)


def _for_directory(name: str) -> str:
    return (_OTHERS.sub("-", name).strip("-") or name) if _OTHERS.search(name) else name


def _placed(found: Found, staging: Path, to: Path, sandbox: SandboxSection, limits: BundleLimits) -> Imported:
    if not _NAME.fullmatch(found.name):
        raise ValueError(
            f"{quoted(found.name)} cannot name a directory: use 1 to 200 letters, digits and ._@+=-, not a dot first"
        )
    note = found.write(staging) or None
    task = _checked(staging, limits)
    run = _problem(task, sandbox)
    target = to / found.name
    if target.exists() or target.is_symlink():
        if not _is_equal(target, task, limits):
            raise ValueError(f"{target} exists already with other content: remove it, or choose another --to")
        return Imported(
            name=found.name, source=found.source, outcome=ImportOutcome.UNCHANGED, run=run, note=note
        )
    staging.chmod(0o755)
    staging.rename(target)
    return Imported(name=found.name, source=found.source, outcome=ImportOutcome.IMPORTED, run=run, note=note)


def _checked(directory: Path, limits: BundleLimits) -> Task:
    return Task.of(read_directory(directory, limits), limits=limits)


def _is_equal(target: Path, task: Task, limits: BundleLimits) -> bool:
    if target.is_symlink() or not target.is_dir():
        return False
    try:
        return _checked(target, limits).content_hash == task.content_hash
    except ValueError:
        return False


def _problem(task: Task, sandbox: SandboxSection) -> str | None:
    """Why a run with these sandboxes would refuse a task."""
    try:
        check_admissible(task, sandbox)
    except ValueError as error:
        return str(error).removeprefix(f"task {task.name}: ")
    return None
