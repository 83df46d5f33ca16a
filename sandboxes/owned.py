"""A directory that goes with its owner, like a sandbox's: it is removed when the owner lets go of it, and when the owner is killed.

For what lies beside sandboxes on a machine and must not outlive whoever made it: the gateway's socket, which a killed
supervisor could not remove.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxes import tree
from sandboxes.heir import appoint
from sandboxes.owner import Owner, Record, prepare_root, record_path, worker
from sandboxes.reap import alone

_PATIENCE_S = 5.0


def sockets_root() -> Path:
    """Where the directories of gateways' sockets lie: one directory per user."""
    return Path(tempfile.gettempdir()) / f"penstock-gateways-{os.geteuid()}"


@contextmanager
def owned_directory(directory: Path) -> Iterator[None]:
    """`directory` is this process's own meanwhile. One that a dead owner left, even one that is being removed, becomes ours empty or as it is.

    Raises SandboxError where its parent belongs to somebody else, or no heir can be started.
    """
    root, name = directory.parent, directory.name
    prepare_root(root)
    with alone(root, _PATIENCE_S):  # or somebody who cleans up could take ours for the dead owner's
        claim = Record(name, Owner.current(), (), -1, worker()).write(root)
        directory.mkdir(mode=0o755, exist_ok=True)
    try:
        appoint(root)
        yield
    finally:
        os.close(claim)
        tree.remove(directory)
        record_path(root, name).unlink(missing_ok=True)
