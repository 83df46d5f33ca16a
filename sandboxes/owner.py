"""Which process owns a sandbox, and whether that process is alive.

A record `<root>/<id>.json` exists from before a sandbox's directory and control group are created until after they
are gone. So everything that a killed owner leaves behind is found by its record.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from sandboxes import procfs
from sandboxes.base import SandboxError

_WORKER: ContextVar[str] = ContextVar("worker", default="")


@contextmanager
def working_as(name: str) -> Iterator[None]:
    """Sandboxes that are opened in this block belong to the worker `name`, as their records state."""
    token = _WORKER.set(name)
    try:
        yield
    finally:
        _WORKER.reset(token)


class WorkKind(StrEnum):
    """The purpose of a sandbox."""

    ATTEMPT = "attempt"
    VERIFICATION = "verification"


@dataclass(slots=True, kw_only=True)
class LeasedWork:
    """The work for which sandboxes are opened: one attempt at one rollout, under one lease. `opened`: how many were
    opened so far, so that each has its own name, which stays the same at every retry."""

    run: str
    rollout: int
    attempt: int
    epoch: int
    kind: WorkKind
    opened: int = 0


_WORK: ContextVar[LeasedWork | None] = ContextVar("work", default=None)


@contextmanager
def working_on(work: LeasedWork) -> Iterator[None]:
    """Sandboxes that are opened in this block are for `work`: remote providers name and label them so."""
    token = _WORK.set(work)
    try:
        yield
    finally:
        _WORK.reset(token)


def work() -> LeasedWork | None:
    """The work of this task, or None if it is not set."""
    return _WORK.get()


def worker() -> str:
    """The worker name of this task; empty if it is not set."""
    return _WORKER.get()


@dataclass(frozen=True, slots=True, kw_only=True)
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
        return cls(
            boot=_boot(), namespace=os.readlink("/proc/self/ns/pid"), pid=os.getpid(), start=found.start
        )

    @classmethod
    def read(cls, text: str) -> Owner:
        """Parse `str` of an owner. ValueError for any other text."""
        boot_id, namespace, pid, start = text.split("/")
        return cls(boot=boot_id, namespace=namespace, pid=int(pid), start=int(start))

    def __str__(self) -> str:
        return f"{self.boot}/{self.namespace}/{self.pid}/{self.start}"

    @property
    def of_this_boot(self) -> bool:
        """Whether the machine has not rebooted since."""
        return self.boot == _boot()

    @property
    def elsewhere(self) -> bool:
        """Whether it is, or was, in another pid namespace of this boot: its pid has no meaning here."""
        return self.of_this_boot and self.namespace != os.readlink("/proc/self/ns/pid")

    def is_dead(self) -> bool:
        """True only if certain: an owner elsewhere cannot be judged by its pid."""
        if not self.of_this_boot:
            return True
        if self.elsewhere:
            return False
        found = procfs.stat(self.pid)
        return found is None or found.start != self.start or found.gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The data needed to clean up after a sandbox: its owner, control groups, and user id (-1: the owner's own), the first of `users`. `worker`
    is for people and auditors: the owner's worker name (`working_as`)."""

    id: str
    owner: Owner
    cgroups: tuple[str, ...]
    uid: int
    worker: str = ""
    users: int = 1

    def write(self, root: Path) -> int:
        """Write it into `root`, locked. The owner keeps the returned descriptor for as long as the sandbox exists. The lock is released with the
        owner, so a process in another pid namespace can detect its death."""
        path = record_path(root, self.id)
        temporary = path.with_suffix(".new")
        claim = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
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
        """Whether its owner is dead: by the owner's pid if that has a meaning here, otherwise (as in a restarted container)
        by the lock."""
        if not self.owner.elsewhere:
            return self.owner.is_dead()
        try:
            with record_path(root, self.id).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # gone, or no locks here: unknown
            return False
        return True


def record_path(root: Path, sandbox_id: str) -> Path:
    return root / f"{sandbox_id}.json"


def records(root: Path) -> list[Record]:
    """Every known sandbox below `root`, in no order; none if `root` is not ours. A record that vanishes while we read belongs to a closed sandbox.

    A record appears whole or not at all, unless the machine lost power. An unreadable record belongs to an owner from before that.
    """
    found: list[Record] = []
    for path in root.glob("*.json") if is_ours(root) else ():
        try:
            raw = json.loads(path.read_text())
            if raw["id"] != path.stem:
                raise ValueError("a record names its own file")
            owner = Owner(**raw["owner"])
            found.append(
                Record(
                    id=raw["id"],
                    owner=owner,
                    cgroups=tuple(raw["cgroups"]),
                    uid=raw["uid"],
                    worker=raw.get("worker", ""),
                    users=raw.get("users", 1),
                )
            )
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            found.append(
                Record(id=path.stem, owner=Owner(boot="", namespace="", pid=0, start=0), cgroups=(), uid=-1)
            )
    return found


def prepare_root(root: Path) -> None:
    """Create the directory that holds sandboxes, or refuse one that another user can tamper with."""
    own_directory(root, 0o711)  # sandbox users can traverse it, but not list or write it


def own_directory(directory: Path, mode: int) -> None:
    """Create `directory` with this mode, or set the mode of ours. Names below the temporary directory can be guessed, so another user may have made
    it first: SandboxError."""
    directory.mkdir(mode=mode, parents=True, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        raise SandboxError(
            f"{directory} belongs to another user: remove it, or set TMPDIR to another directory"
        )
    if status.st_mode & 0o022:
        raise SandboxError(
            f"{directory} is writable by other users: remove it, or set TMPDIR to another directory"
        )
    directory.chmod(mode)


def is_ours(directory: Path) -> bool:
    """Whether this is a directory, no link, that only this user can write."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
