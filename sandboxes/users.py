"""The user of a sandbox's programs: the named one, its numbers inside, and the users of this machine that stand for it.

Without a name, programs run as the sandbox's own user, `agent` with uid 1000. It owns everything that it may write, and has no rights beyond that.
The work directory belongs to it as a whole. `root` is the same user under the uid 0: one user of this machine stands for either, without a range.

Any other user needs a *range*: several users of this machine, which nothing else uses, stand for the users inside. Then the files of an image's work
directory have the owners that its author gave them, and one user's private files are closed to the other. Programs run as one of them alone: no
program has capabilities, and set-user-id bits have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sandboxes.base import ImageRefused, SandboxSpec

AGENT, AGENT_UID, ROOT = "agent", 1000, "root"
MAX_IDS = 16
"""Users, and groups, of one sandbox."""
FIRST_RANGE, RANGES = 0x7200_0000, 0x00D0_0000
"""Where ranges begin, above the users of sandboxes without one and of their containers; how many there are."""
_NUMBER = re.compile(r"[0-9]{1,10}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")
_MAX_UID = (1 << 31) - 1


def is_user(value: object) -> bool:
    """Whether a value can name a user: a uid, as a number or as text, or a name."""
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 <= value <= _MAX_UID
    if not isinstance(value, str):
        return False
    if _NUMBER.fullmatch(value):
        return int(value) <= _MAX_UID
    return bool(_NAME.fullmatch(value))


def own(user: str) -> int | None:
    """The uid inside of a user that needs no range: 1000 for none and `agent`, 0 for `root`. None: it needs one."""
    known = {"": AGENT_UID, AGENT: AGENT_UID, str(AGENT_UID): AGENT_UID, ROOT: 0, "0": 0}
    return known.get(str(int(user)) if _NUMBER.fullmatch(user) else user)


def refusal(provider: object, user: str) -> str | None:
    """Why the sandboxes of a provider, or of a class of providers, run no programs as `user`, in one clause. None: they may."""
    if user in ("", AGENT):
        return None
    refuses: Callable[[str], str | None] | None = getattr(provider, "refuses_user", None)
    if refuses is not None:
        return refuses(user)
    name = getattr(provider, "name", "chosen")
    return f"sandboxes of the provider {name} run programs as their own user alone: name agent, or remove it"


def refuse_user(provider: object, spec: SandboxSpec) -> None:
    """ImageRefused if no program of `provider` runs as the spec's user."""
    if (why := refusal(provider, spec.user)) is not None:
        raise ImageRefused(f"programs cannot run as {spec.user}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user inside: `name` as variables give it, its uid, its own group and its further groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, int, tuple[int, ...]]:
        """uid, gid and further groups."""
        return self.uid, self.gid, self.groups


def find(user: str, passwd: str, group: str, where: str) -> Account:
    """Who `user` is, by the texts of /etc/passwd and /etc/group. A uid need not be among them. ImageRefused for a name that is not; `where`: the
    place that lacks it, for the sentence."""
    lines = [line.split(":") for line in passwd.splitlines()]
    accounts = [
        (line[0], int(line[2]), int(line[3]))
        for line in lines
        if len(line) > 3 and _NUMBER.fullmatch(line[2]) and _NUMBER.fullmatch(line[3])
    ]
    if _NUMBER.fullmatch(user):
        name, uid, gid = next((each for each in accounts if each[1] == int(user)), (user, int(user), 0))
        if name == user:
            return Account(name=user, uid=uid, gid=gid)
    else:
        found = next((each for each in accounts if each[0] == user), None)
        if found is None:
            known = ", ".join(sorted({each[0] for each in accounts}))[:200]
            raise ImageRefused(
                f"{where} has no user {user!r}: create it in environment/Dockerfile, or name one of {known}"
            )
        name, uid, gid = found
    further = {
        int(line[2])
        for line in (text.split(":") for text in group.splitlines())
        if len(line) > 3 and _NUMBER.fullmatch(line[2]) and name in line[3].split(",")
    }
    return Account(name=name, uid=uid, gid=gid, groups=tuple(sorted(further - {gid}))[: MAX_IDS // 2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The users of this machine from `first` on that stand for `uids` inside, in this order, and likewise the groups for `gids`. `account`: that of
    programs."""

    first: int
    uids: tuple[int, ...]
    gids: tuple[int, ...]
    account: Account

    @classmethod
    def of(cls, account: Account, owners: Iterable[tuple[int, int]], first: int) -> Range:
        """A range for programs of `account` and the (uid, gid) of files. ImageRefused if they are too many."""
        owners = list(owners)
        uids = dict.fromkeys((0, account.uid, *(uid for uid, _ in owners)))
        gids = dict.fromkeys((0, account.gid, *account.groups, *(gid for _, gid in owners)))
        if max(len(uids), len(gids)) > MAX_IDS:
            raise ImageRefused(
                f"the image's work directory belongs to more than {MAX_IDS} users or groups: give its files to fewer"
            )
        return cls(first=first, uids=tuple(uids), gids=tuple(gids), account=account)

    def outside(self, uid: int, gid: int) -> tuple[int, int]:
        """(user, group) of this machine that stand for a user and a group inside."""
        return self.first + self.uids.index(uid), self.first + self.gids.index(gid)

    @property
    def owner(self) -> tuple[int, int]:
        """(user, group) of this machine that stand for the programs'."""
        return self.outside(self.account.uid, self.account.gid)

    def maps(self) -> Mapping[str, str]:
        """The content of uid_map and gid_map of its user namespace."""
        return {
            name: "".join(f"{inside} {self.first + at} 1\n" for at, inside in enumerate(ids))
            for name, ids in (("uid_map", self.uids), ("gid_map", self.gids))
        }
