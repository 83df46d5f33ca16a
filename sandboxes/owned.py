"""A directory that is removed with its owner, like a sandbox's: when the owner releases it, and when the owner is killed.

For files that are used with sandboxes on a machine and must not outlive their creator, such as the gateway's socket, which a killed
supervisor could not remove.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxes import tree
from sandboxes.cleanup_daemon import ensure_running
from sandboxes.owner import Owner, Record, prepare_root, record_path, worker
from sandboxes.reap import alone

_PATIENCE_S = 5.0


def sockets_root() -> Path:
    """The parent of the directories of gateways' sockets: one directory per user."""
    return Path(tempfile.gettempdir()) / f"penstock-gateways-{os.geteuid()}"


@contextmanager
def owned_directory(directory: Path) -> Iterator[None]:
    """Own `directory` inside the block. A directory that a dead owner left becomes ours, empty or unchanged, even if it is just being removed.

    Raises SandboxError if its parent belongs to another user, or if the cleanup daemon cannot be started.
    """
    root, name = directory.parent, directory.name
    prepare_root(root)
    with alone(root, _PATIENCE_S):  # or a concurrent cleanup could mistake ours for the dead owner's
        claim = Record(id=name, owner=Owner.current(), cgroups=(), uid=-1, worker=worker()).write(root)
        tree.make_passable(directory, 0o755)
    try:
        ensure_running(root)
        yield
    finally:
        os.close(claim)
        tree.remove(directory)
        record_path(root, name).unlink(missing_ok=True)
