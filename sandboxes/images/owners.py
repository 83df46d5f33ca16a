"""The owners that the author of an image gave its files. The store keeps the files as those of one user, and the owners in a file next to them.

Sandboxes with a range of users (users.py) show the owners of the work directory. Everywhere else an image's files belong to a user without a name.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.machine import pass_on
from sandboxes.users import MAX_IDS, Account, Range

Ids = tuple[int, int]
"""(uid, gid) inside."""
ROOT: Ids = (0, 0)
FILE = "owners.json"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """`usual`: the owner of most entries of the work directory. `others`: those of the others, by path below it, "" for the directory itself.
    `system`: those of entries elsewhere, by path from the root, if they are not root's."""

    usual: Ids = ROOT
    others: Mapping[str, Ids] = field(default_factory=dict)
    system: Mapping[str, Ids] = field(default_factory=dict)

    @property
    def ids(self) -> set[Ids]:
        """Every owner in the work directory."""
        return {self.usual, *self.others.values()}

    @classmethod
    def of(cls, entries: Iterator[tuple[str, Ids]], work: str) -> Owners:
        """From (path from the root, owner) of every entry."""
        inside: dict[str, Ids] = {}
        system: dict[str, Ids] = {}
        for path, ids in entries:
            if path == work or path.startswith(f"{work}/"):
                inside[path[len(work) + 1 :]] = ids
            elif ids != ROOT:
                system[path] = ids
        usual = Counter(inside.values()).most_common(1)[0][0] if inside else ROOT
        return cls(
            usual=usual, others={path: ids for path, ids in inside.items() if ids != usual}, system=system
        )

    def at(self, path: str, work: str) -> Ids:
        """The owner of a path from the root; `work`: the work directory."""
        if path == work or path.startswith(f"{work}/"):
            return self.others.get(path[len(work) + 1 :], self.usual)
        return self.system.get(path, ROOT)

    def text(self) -> str:
        """Its form in the store, the same for the same owners."""
        return json.dumps({"usual": self.usual, "others": self.others, "system": self.system}, sort_keys=True)

    @classmethod
    def read(cls, file: Path) -> Owners:
        """From `text`. OSError, ValueError."""
        found = json.loads(file.read_text(encoding="utf-8"))
        return cls(
            usual=tuple(found["usual"]),
            others={path: (uid, gid) for path, (uid, gid) in found["others"].items()},
            system={path: (uid, gid) for path, (uid, gid) in found["system"].items()},
        )


OF_ROOT = Owners()


def of_places(owners: Owners, places: Sequence[str], users: Range | None = None) -> dict[str, Ids]:
    """The owners of entries in `places` that are not root's, by path from the root; with `users`, those that it knows: others stay root's."""
    return {
        path: ids
        for path, ids in owners.system.items()
        if any(f"/{path}/".startswith(f"{place}/") for place in places)
        and (users is None or (ids[0] in users.uids and ids[1] in users.gids))
    }


def within_range(account: Account, known: Collection[Ids], more: Collection[Ids]) -> list[Ids]:
    """`known`, and as many of `more`, the most frequent first, as one range of users takes."""
    found = list(known)
    for ids, _ in Counter(more).most_common():
        uids = {0, account.uid, ids[0], *(uid for uid, _ in found)}
        gids = {0, account.gid, *account.groups, ids[1], *(gid for _, gid in found)}
        if max(len(uids), len(gids)) <= MAX_IDS:
            found.append(ids)
    return found


def read_system_file(root: Path, path: str) -> str:
    """The text of a file of an image's system; "" if it has none, reaches it through a link, or it is not a short text."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, name = path.split("/")
        for parent in parents:
            inner = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = inner
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        with open(file, "rb") as source:
            regular = stat.S_ISREG(os.fstat(source.fileno()).st_mode)
            return source.read(_MAX_BYTES).decode(errors="replace") if regular else ""
    except OSError as error:
        pass_on(error)
        return ""
    finally:
        os.close(fd)


def give(base: Path, owners: Mapping[str, Ids]) -> None:
    """Give entries below `base` to (user, group) of this machine. Their parents must be real directories."""
    for path, ids in owners.items():
        os.chown(base / path if path else base, *ids, follow_symlinks=not path)
