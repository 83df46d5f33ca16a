"""Whose sandbox is it, and does that process still live?

A record `<root>/<id>.json` exists from before a sandbox's directory and control group are made until after they
are gone, so that whatever a killed owner leaves behind is found by its record.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path

from sandboxes import procfs
from sandboxes.base import SandboxError

_WORKER: ContextVar[str] = ContextVar("worker", default="")


@contextmanager
def working_as(name: str) -> Iterator[None]:
    """Sandboxes that are opened within are those of the worker `name`: their records say so."""
    token = _WORKER.set(name)
    try:
        yield
    finally:
        _WORKER.reset(token)


@dataclass(slots=True)
class Work:
    """What sandboxes are opened for: one try at one rollout, under one lease. `kind`: attempt or verification. `opened`: how many were so far,
    so that each has a name of its own, and the same one however often it is asked for."""

    run: str
    rollout: int
    attempt: int
    epoch: int
    kind: str
    opened: int = 0


_WORK: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def working_on(work: Work) -> Iterator[None]:
    """Sandboxes that are opened within are for `work`: providers elsewhere name and label them so."""
    token = _WORK.set(work)
    try:
        yield
    finally:
        _WORK.reset(token)


def work() -> Work | None:
    """What this task works on, or None: nobody said."""
    return _WORK.get()


def worker() -> str:
    """As whom this task works; empty: nobody said."""
    return _WORKER.get()


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, identified beyond reuse of its number: machine boot, pid namespace, pid, start time."""

    boot: str
    namespace: str
    pid: int
    start: int

    @classmethod
    def current(cls) -> Owner:
        found = procfs.stat(os.getpid())
        assert found is not None
        return cls(_boot(), os.readlink("/proc/self/ns/pid"), os.getpid(), found.start)

    @classmethod
    def read(cls, text: str) -> Owner:
        """What `str` of an owner says. ValueError where none says that."""
        boot, namespace, pid, start = text.split("/")
        return cls(boot, namespace, int(pid), int(start))

    def __str__(self) -> str:
        return f"{self.boot}/{self.namespace}/{self.pid}/{self.start}"

    @property
    def of_this_boot(self) -> bool:
        """Whether the machine has been up since."""
        return self.boot == _boot()

    @property
    def elsewhere(self) -> bool:
        """Whether it is, or was, in another pid namespace of this boot: its number says nothing here."""
        return self.of_this_boot and self.namespace != os.readlink("/proc/self/ns/pid")

    def is_dead(self) -> bool:
        """True only for sure: an owner elsewhere cannot be judged by its number."""
        if not self.of_this_boot:
            return True
        if self.elsewhere:
            return False
        found = procfs.stat(self.pid)
        return found is None or found.start != self.start or found.state in "ZX"


@dataclass(frozen=True, slots=True)
class Record:
    """What it takes to clean up after a sandbox: its owner, control groups, and user id (-1: the owner's own). `worker` is for people and
    auditors: as whom the owner worked (`working_as`)."""

    id: str
    owner: Owner
    cgroups: tuple[str, ...]
    uid: int
    worker: str = ""

    def write(self, root: Path) -> int:
        """Into `root`, locked. The owner keeps the descriptor that is returned for as long as there is a sandbox: the lock goes with the owner,
        and whoever looks from another pid namespace can see that."""
        path = record_path(root, self.id)
        temporary = path.with_suffix(".new")
        claim = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(claim, "w", closefd=False) as file:
                json.dump(asdict(self), file)
            temporary.rename(path)
        except BaseException:
            os.close(claim)
            raise
        return claim

    def orphaned(self, root: Path) -> bool:
        """Whether its owner is dead. By the owner's number where that says something here; elsewhere, as in a container that was started
        again, by the lock."""
        if not self.owner.elsewhere:
            return self.owner.is_dead()
        try:
            with record_path(root, self.id).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # gone, or without locks: nothing is known
            return False
        return True


def record_path(root: Path, sandbox_id: str) -> Path:
    return root / f"{sandbox_id}.json"


def records(root: Path) -> list[Record]:
    """Every sandbox known below `root`, in no order. Records that vanish while we look are closed sandboxes.

    A record appears whole or not at all, unless the machine lost power: one that cannot be read is of an owner before that.
    """
    found: list[Record] = []
    for path in root.glob("*.json"):
        try:
            raw = json.loads(path.read_text())
            owner = Owner(**raw["owner"])
            found.append(Record(raw["id"], owner, tuple(raw["cgroups"]), raw["uid"], raw.get("worker", "")))
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            found.append(Record(path.stem, Owner("", "", 0, 0), (), -1))
    return found


def prepare_root(root: Path) -> None:
    """Make the directory that holds sandboxes, or refuse one that somebody else can tamper with."""
    root.mkdir(mode=0o711, parents=True, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.geteuid() or root.is_symlink():
        raise SandboxError(f"{root} belongs to somebody else: name another directory for sandboxes")
    os.chmod(root, 0o711)  # sandbox users pass through, nobody lists or writes


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
