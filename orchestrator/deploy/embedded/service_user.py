"""The unprivileged user that runs PostgreSQL when we are root, and the places that this user can reach.

PostgreSQL refuses to run as root, and a user other than root cannot see inside a 0700 home. A path that the service user
cannot reach is replaced by one under `neutral_root()`.
"""

import os
import pwd
import stat
import tempfile
from pathlib import Path

from sandboxes.owner import is_ours

# `daemon` is on every Debian and runs nothing else of ours; the last one is the user of sandboxed programs.
_CANDIDATES = ("postgres", "daemon", "nobody")


def service_user(data: Path | None = None) -> str | None:
    """The user to run PostgreSQL as: the owner of `data` if that exists, else the first known service user. None if we
    are not root and run it as ourselves. Raises ValueError if root finds no such user."""
    if os.geteuid() != 0:
        return None
    if data is not None and data.exists() and (owner := data.stat().st_uid) != 0:
        return pwd.getpwuid(owner).pw_name
    existing = {entry.pw_name for entry in pwd.getpwall()}
    for name in _CANDIDATES:
        if name in existing:
            return name
    raise ValueError(
        f"PostgreSQL cannot run as root and none of the users {', '.join(_CANDIDATES)} exists; create one with: "
        "useradd --system postgres"
    )


def own(path: Path, user: str | None) -> None:
    """Gives `path` to the service user."""
    if user is not None:
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def reachable(path: Path, user: str | None) -> bool:
    """True if `user` may traverse every directory above `path`, and enter `path` itself if it is a directory. Reads only mode
    bits; None (ourselves) always can."""
    if user is None:
        return True
    entry = pwd.getpwnam(user)
    resolved = path.resolve()
    return all(
        _enterable(part, entry.pw_uid, entry.pw_gid)
        for part in (resolved, *resolved.parents)
        if part.is_dir()
    )


def _enterable(directory: Path, uid: int, gid: int) -> bool:
    found = directory.stat()
    if found.st_uid == uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def neutral_root() -> Path:
    """A directory of root that every user can traverse: `/var/lib/penstock`, or one under the temporary directory if `/var`
    is read-only. Raises ValueError if another user owns the name."""
    for path in (Path("/var/lib/penstock"), Path(tempfile.gettempdir()) / "penstock-root"):
        try:
            path.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            continue
        if not is_ours(path):
            raise ValueError(
                f"{path} belongs to another user or is writable by others; remove it and start again"
            )
        path.chmod(0o755)
        return path
    raise ValueError(
        "neither /var/lib nor the temporary directory can be written; free some space or set TMPDIR"
    )
