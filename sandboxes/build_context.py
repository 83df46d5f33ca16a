"""A build context: its identity, what an engine gets of it, and its files on disk."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from sandboxes.base import BuildEntry, File, Folder, ImageRefused, Link, StoredFile, digest_of
from sandboxes.docker_patterns import IgnoreFile

_DOCKERFILE = "Dockerfile"
IGNORES = (f"{_DOCKERFILE}.dockerignore", ".dockerignore")
"""The first one counts."""
_OF_PODMAN = (".containerignore", f"{_DOCKERFILE}.containerignore")
"""That podman reads in place of those."""

_MAX_PATTERNS = 2000
"""Lines of an ignore file. Each is compared with each path."""
_MAX_BYTES = 1 << 18


def context_digest(context: Mapping[str, BuildEntry]) -> bytes:
    """sha256 over paths, permission bits and content."""
    hasher = hashlib.sha256()
    for path, entry in sorted(context.items()):
        match entry:
            case Link(target):
                hasher.update(json.dumps([path, target]).encode())
            case Folder(mode):
                hasher.update(json.dumps([path, mode]).encode())
            case _:
                hasher.update(json.dumps([path, entry.size, entry.mode]).encode() + digest_of(entry))
    return hasher.digest()


def ignore_file(context: Mapping[str, BuildEntry], what: str) -> tuple[str, IgnoreFile] | None:
    """The ignore file of a context that counts, with its name; None without one. ImageRefused, with `what`, if it is a link or a directory, if it is
    too large, or for a pattern that is not read here."""
    name = next((each for each in IGNORES if each in context), None)
    if name is None:
        return None
    file = context[name]
    if not isinstance(file, File | StoredFile):
        kind = "a link" if isinstance(file, Link) else "a directory"
        raise ImageRefused(f"{what.rstrip(',')}: its {name} is {kind}: write the file itself")
    if file.size > _MAX_BYTES or file.data.count(b"\n") >= _MAX_PATTERNS:
        raise ImageRefused(
            f"{what.rstrip(',')}: its {name} is larger than {_MAX_PATTERNS:,} lines or {_MAX_BYTES:,} bytes: name directories, not their files"
        )
    ignored = IgnoreFile(file.data.decode(errors="replace"))
    if ignored.unread:
        raise ImageRefused(
            f"{what.rstrip(',')}: the pattern {ignored.unread[0]!r:.200} of its {name} is not read: {ignored.remedy}"
        )
    return name, ignored


def sent(context: Mapping[str, BuildEntry], what: str, until: float) -> Mapping[str, BuildEntry]:
    """A build context without what its ignore file leaves out, and without other ignore files: engines differ in which they read in an archive.
    ImageRefused as for `ignore_file`, and if that is not decided `until` a time of the monotonic clock."""
    found = ignore_file(context, what)
    if found is None:
        return context
    name, ignored = found
    needed = (_DOCKERFILE, name)
    others = {*IGNORES, *_OF_PODMAN} - {name}
    kept = {}
    for path, entry in context.items():
        if time.monotonic() > until:
            raise ImageRefused(
                f"{what.rstrip(',')}: its {name} takes longer than the build may (build_timeout_sec): write fewer patterns"
            )
        if path in needed or not (path in others or ignored.leaves_out(path)):
            kept[path] = entry
    return kept


def write_context(context: Mapping[str, BuildEntry], place: Path) -> None:
    """Write a context into an empty directory. Its paths are relative and plain, and no entry lies below a file or a link."""
    for path, entry in sorted(context.items()):
        target = place / path
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        match entry:
            case Link(leads_to):
                target.symlink_to(leads_to)
            case Folder():
                target.mkdir(exist_ok=True)
            case _:
                with entry.open() as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                target.chmod(entry.mode)
    for path, entry in sorted(context.items(), reverse=True):
        if isinstance(entry, Folder):
            (place / path).chmod(entry.mode)
