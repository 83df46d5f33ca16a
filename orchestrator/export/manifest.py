"""An export's directory: its owner, its progress, and files that get their final names only when complete.

<out>/penstock-export.json    the export's options, and the key of the last attempt in a finished part
<out>/.writing/               the current part; discarded when an export continues
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.failpoints import boundary_sync

FILE = "penstock-export.json"
WRITING = ".writing"


class Manifest(msgspec.Struct, kw_only=True):
    """`selection`: filters and options as given. `sections`: the sections that split the parts; `section`: the current one; `after`: its last
    key in a finished part. `part` counts the parts of all sections."""

    export: str
    run: str
    created: datetime  # the run's: a run of that name in another database is a different one
    selection: dict[str, Any]
    as_of: datetime  # by the database's clock
    since: datetime | None = None
    sections: list[dict[str, Any]] = []
    section: int = 0
    part: int = 0
    after: tuple[int, int] | None = None
    attempts: int = 0
    steps: int = 0
    done: bool = False


def read_manifest(out: Path) -> Manifest | None:
    """The manifest in a directory; None if there is none. Raises ConfigurationError if it cannot be read."""
    try:
        return msgspec.json.decode((out / FILE).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigurationError(
            f"{out / FILE} cannot be read ({error}): choose another directory with --out"
        ) from error


@contextlib.contextmanager
def claimed(out: Path, new: Manifest) -> Iterator[Manifest]:
    """`out`, locked for this process: a new or empty directory, or one where the same export continues. Raises ConfigurationError
    otherwise."""
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"--out {quoted(str(out))} is not UTF-8 text, which some formats need: choose another directory"
        ) from None
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"{out} is a file; --out is a directory, new or empty")
    found = read_manifest(out)
    if found is None and out.exists() and any(out.iterdir()):
        raise ConfigurationError(
            f"{out} holds something else, which is not overwritten: choose another directory with --out"
        )
    if found is not None:
        _same(out, found, new)
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed by the kernel when its holder dies
    except BlockingIOError:
        os.close(lock)
        raise ConfigurationError(
            f"another process is exporting into {out}: wait for it, or stop it"
        ) from None
    try:
        found = read_manifest(out)  # the previous holder of the lock may have written more
        if found is None:
            found = new
            write_manifest(out, found)
        shutil.rmtree(out / WRITING, ignore_errors=True)
        yield found
    finally:
        shutil.rmtree(out / WRITING, ignore_errors=True)
        os.close(lock)


def _same(out: Path, found: Manifest, new: Manifest) -> None:
    if found.export != new.export:
        raise ConfigurationError(
            f"{out} holds an export as {found.export}: choose another directory with --out"
        )
    if (found.run, found.created) != (new.run, new.created):
        raise ConfigurationError(
            f"{out} holds an export of the run {quoted(found.run)} of {found.created:%Y-%m-%d %H:%M:%S}, which is another one: "
            "choose another directory with --out"
        )
    if found.selection != new.selection:
        raise ConfigurationError(
            f"{out} holds an export of something else ({_say(found.selection)}; now {_say(new.selection)}): "
            "request the same to continue it, or choose another directory with --out"
        )


def _say(selection: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(selection.items())) or "everything"


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Write atomically."""
    writing = out / WRITING
    writing.mkdir(exist_ok=True)
    (writing / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    publish(out, FILE)


def publish(out: Path, name: str) -> None:
    """Give a finished file in .writing its final name; the file is synced first."""
    written, final = out / WRITING / name, out / name
    final.parent.mkdir(parents=True, exist_ok=True)
    with written.open("rb") as file:
        boundary_sync("export.sync", lambda: os.fsync(file.fileno()))
    # After a repeat, the rename is already done.
    boundary_sync("export.rename", lambda: os.replace(written, final) if written.exists() else None)
    for directory in {final.parent, out}:  # only this makes the name durable
        _sync(directory)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        boundary_sync("export.sync", lambda: os.fsync(handle))
    finally:
        os.close(handle)
