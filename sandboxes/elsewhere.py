"""Places of an image outside of its work directory: what of a root file system holds data, and may be written and carried to another sandbox.

The rule is about paths alone. Whether an image has such a place, and lets programs write it, is decided by images/places.py.
"""

from __future__ import annotations

import posixpath

from sandboxes.base import HOME, WORK

_SYSTEM = frozenset(
    {
        *("usr", "bin", "sbin", "etc", "boot", "dev", "proc", "sys", "run", "tmp"),
        *("app", "logs", "tests", "solution"),
    }
)
"""Names in the root directory that are the system's or the sandbox's own, with everything below them. So is each that begins with `lib`."""
SHARED = ("home", "opt", "var")
"""Names in the root directory that are no place themselves: the directories in them may be."""
DEFAULT = frozenset({"home"})
"""Those of `SHARED` whose directories may be written without a request. Programs are installed in the others, and keep their state there."""


def place_of(path: str) -> str:
    """The shortest path of a place that holds `path` or is `path`; "" for a path that no place may hold.

    >>> place_of("/data/a/b"), place_of("/home/me/a"), place_of("/etc/passwd"), place_of("/opt")
    ('/data', '/home/me', '', '')
    """
    if not path.startswith("/") or "\0" in path or posixpath.normpath(path) != path or path == "/":
        return ""
    parts = path[1:].split("/")
    if parts[0] in _SYSTEM or parts[0].startswith("lib"):
        return ""
    depth = 2 if parts[0] in SHARED else 1
    if len(parts) < depth:
        return ""
    found = "/" + "/".join(parts[:depth])
    return "" if found == HOME else found


def lies_elsewhere(path: str) -> bool:
    """Whether something at `path` lies in such a place."""
    return place_of(path) not in ("", path)


def leads_elsewhere(path: str, target: str) -> bool:
    """Whether a link leads to such a place or something in it. `path`: that of the link, absolute or relative to the work directory. The forms of
    `artifacts.stays` hold: `..` only at the beginning, and no higher than the root."""
    full = target_of(path, target)
    return full is not None and place_of(full) != ""


def target_of(path: str, target: str) -> str | None:
    """The absolute path to which a link leads if no other link is on the way; None for a form that does not decide it, or a climb out of the work
    directory."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    if not target or "\0" in target or ".." in parts[climbs:]:
        return None
    if target.startswith("/"):
        return None if climbs else "/" + "/".join(parts)
    # The work directory has another path in every image, so nothing relative leads out of it.
    if climbs > (path.count("/") - 1 if path.startswith("/") else path.count("/")):
        return None
    absolute = path if path.startswith("/") else f"{WORK}/{path}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(absolute), *parts))
