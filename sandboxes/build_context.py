"""A build context: its identity, and its files on disk."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from sandboxes.base import BuildEntry, Folder, Link, digest_of


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
