"""Runs programs in the cage (cage.py) with limits of time, output and disk space, from their owner's side."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread

from sandboxes import cgroups, tree
from sandboxes.base import (
    BuildOutOfSpace,
    BuildTimedOut,
    DownloadFailed,
    ImageRefused,
    Limits,
    MachineFault,
    SandboxError,
    SandboxFull,
)
from sandboxes.cgroups import Cgroup, Hierarchies
from sandboxes.images.cage import FAILED, RANGE, RESOLVER
from sandboxes.images.complaint import at_step, complaint, has_ended_itself, is_download, is_out_of_space
from sandboxes.login import login_name
from sandboxes.machine import fault
from sandboxes.tools import bwrap
from sandboxes.tree import TreeUsage

FIRST_USER = 0x6000_0000
"""Root's builds have the users from here on: far above system and human users, and below those of sandboxes."""
_POLL_S = 1.0
_KEPT, _MAX_OUTPUT = 16_384, 64 << 20
_REMOVAL_S: Final = 600.0
_SIGNALLED: Final = 128
_PROCESSES: Final = 16_384
_NO_ROOM, _LITTLE_ROOM = 64 << 20, 1 << 30
"""Bytes free on a disk: where a build fails for lack of them, and where it cannot be expected to succeed."""
_FEW_FILES = 256
_HOME = str(Path(__file__).resolve().parents[2])
_CAGE: Final = (sys.executable, "-m", "sandboxes.images.cage")
_SUBIDS = Path("/etc/subuid")
_TUN = Path("/dev/net/tun")
BUILD_KEY: Final = "sandbox.images.build_s"
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caged:
    """A program to run. `binds`: (path on this machine, path inside, whether read-only). `time_s`, `disk_mb`, `memory_mb`: its limits (0: no limit of
    memory), `time_from`: the name of the first; `grows`: the directory in which its disk space is measured. `opened`: private networks that it may
    reach. `what` names it in messages."""

    argv: Sequence[str]
    what: str
    binds: Sequence[tuple[Path, str, bool]]
    env: Mapping[str, str] = field(default_factory=dict)
    time_s: float
    time_from: str = BUILD_KEY
    disk_mb: int
    memory_mb: int = 0
    grows: Path
    network: bool = True
    opened: Sequence[str] = ()


def subordinate() -> tuple[int, int]:
    """(the first user of builds on this machine, their number). SandboxError, with the remedy, if this user has none."""
    if os.geteuid() == 0:
        return FIRST_USER, RANGE
    name = login_name()
    names = {str(os.geteuid()), name}
    for line in _SUBIDS.read_text().splitlines() if _SUBIDS.exists() else ():
        owner, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if owner in names and first.isdigit() and count.isdigit() and int(count) >= RANGE - 1:
            return int(first), RANGE
    remedy = f"run usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}"
    if name.isdecimal():  # usermod knows no users without a name
        remedy = f"add the line {name}:100000:65536 to /etc/subuid and /etc/subgid"
    raise SandboxError(f"this user has no subordinate users, which builds need: as root, {remedy}")


def missing(*programs: str) -> list[str]:
    """The lacks of this machine for builds, one sentence each, with the remedy."""
    packages = {
        "slirp4netns": "slirp4netns",
        "ip": "iproute2",
        "buildah": "buildah",
        "debootstrap": "debootstrap",
        "newuidmap": "uidmap",
    }
    needed = [*programs, "slirp4netns", "ip", *(() if os.geteuid() == 0 else ("newuidmap",))]
    path = _path()
    found = [
        f"{name} is not installed: apt-get install {packages[name]}."
        for name in needed
        if shutil.which(name, path=path) is None
    ]
    if not os.access(_TUN, os.R_OK | os.W_OK):
        found.append(f"{_TUN} cannot be opened, which slirp4netns needs: as root, run chmod 0666 {_TUN}.")
    try:
        subordinate()
    except SandboxError as error:
        found.append(f"{error}.")
    return found


def make_etc(place: Path) -> Path:
    """The directory /etc of a cage, at `place`."""
    (place / "alternatives").mkdir(parents=True)
    (place / "ld.so.cache").touch()
    containers = place / "containers"
    containers.mkdir()
    for file, text in {
        place / "passwd": "root:x:0:0:root:/storage:/bin/sh\n",
        place / "group": "root:x:0:\n",
        place / "hosts": "127.0.0.1 localhost build\n",
        place / "resolv.conf": f"nameserver {RESOLVER}\n",
        place / "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        containers / "policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
        containers / "registries.conf": 'unqualified-search-registries = ["docker.io"]\n',
        containers
        / "storage.conf": '[storage]\ndriver = "overlay"\ngraphroot = "/storage/graph"\nrunroot = "/storage/run"\n',
    }.items():
        file.write_text(text)
        file.chmod(0o644)
    for directory in (place, place / "alternatives", containers):
        directory.chmod(0o755)
    return place


def own(directory: Path) -> Path:
    """Make a directory for the root of cages."""
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0 and directory.stat().st_uid != FIRST_USER:
        os.chown(directory, FIRST_USER, FIRST_USER)
    return directory


def _request(task: Caged) -> bytes:
    """The input of the cage. SandboxError if this user has no subordinate users."""
    first, users = subordinate()
    request = {
        "binds": [[str(outside), inside, read_only] for outside, inside, read_only in task.binds],
        "network": task.network,
        "opened": list(task.opened),
        "first": first,
        "users": users,
        "bwrap": bwrap(),
        "env": dict(task.env),
        "argv": list(task.argv),
    }
    return json.dumps(request).encode()


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": _HOME, "PATH": _path()}


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def identity(program: str) -> str:
    """A text that changes when another version of a program of cages is installed; empty: there is none."""
    found = shutil.which(program, path=_path())
    if found is None:
        return ""
    status = os.stat(found)
    return f"{found} {status.st_size} {status.st_mtime_ns}"


def remove(directory: Path) -> None:
    """Delete a directory to which no process writes, and everything below, also what subordinate users own there: an ordinary user removes that in a
    cage. No-op if it is gone. SandboxError if something stays."""
    try:
        tree.remove(directory)
        return
    except SandboxError:
        if os.geteuid() == 0:
            raise
    task = Caged(
        argv=("find", "/out", "-mindepth", "1", "-delete"),
        what="",
        binds=[(directory, "/out", False)],
        time_s=_REMOVAL_S,
        disk_mb=0,
        grows=directory,
        network=False,
    )
    # What it could not remove is named by the second try.
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            _CAGE,
            input=_request(task),
            capture_output=True,
            env=_environment(),
            start_new_session=True,
            cwd="/",
            timeout=task.time_s,
        )
    tree.remove(directory)


async def run(task: Caged, log: Log | None = None) -> str:
    """Run it to its end. Returns the end of its output. ImageRefused if it fails or exceeds a limit, BuildTimedOut if that is its time,
    DownloadFailed if the network or a server fails it, BuildOutOfSpace if it finds no room to write, SandboxError if the cage cannot be made, or is
    ended from outside, SandboxFull or MachineFault if the disk becomes full."""
    request = _request(task)
    limits = await anyio.to_thread.run_sync(_group, task.memory_mb)
    try:
        return await _run(task, request, limits, log)
    finally:
        if limits is not None:
            with anyio.CancelScope(shield=True):
                try:
                    await anyio.to_thread.run_sync(limits.remove)
                except SandboxError as error:  # the result of the program counts; `remove_probes` tries again
                    if log is not None:
                        log(f"{error}\n")


@functools.cache
def _hierarchies() -> Hierarchies:
    """The control groups that work here. LookupError if none does, which is not kept."""
    if (found := cgroups.detect()) is None:
        raise LookupError("no control groups")
    return found


def _group(memory_mb: int) -> Cgroup | None:
    """A control group for a build; None without a limit, or where none works."""
    if not memory_mb:
        return None
    try:
        found = _hierarchies()
    except LookupError:
        return None
    return found.create(cgroups.own_name(), Limits(memory_mb=memory_mb, processes=_PROCESSES))


async def _run(task: Caged, request: bytes, limits: Cgroup | None, log: Log | None) -> str:
    process = await anyio.open_process(
        _CAGE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        start_new_session=True,
        cwd="/",
    )
    running = _Running(task=task, process=process, limits=limits)
    try:
        running.limit()
        async with anyio.create_task_group() as group:
            group.start_soon(running.watch_disk)
            group.start_soon(running.watch_time)
            assert process.stdin is not None
            await process.stdin.send(request)
            await process.stdin.aclose()
            await running.read(log)
            await process.wait()
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()
    return running.result()


@dataclass(slots=True, kw_only=True)
class _Running:
    """A program in its cage. `tail`: the end of its output; `ended_by`: the limit at which we ended it, as the end of a sentence;
    `late`: whether that is its time; `free`: bytes free on its disk when it began, and the fewest since then."""

    task: Caged
    process: anyio.abc.Process
    limits: Cgroup | None
    tail: bytearray = field(default_factory=bytearray)
    ended_by: str = ""
    late: bool = False
    free: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        now = self._free()
        self.free = now, now

    def limit(self) -> None:
        """Put the cage, which still waits for its request, into the control group. SandboxError if the kernel refuses."""
        for directory in self.limits.directories if self.limits is not None else ():
            try:
                (directory / "cgroup.procs").write_text(str(self.process.pid))
            except OSError as error:
                raise fault(error, f"a build cannot enter its control group: {error}") from error

    def _over(self) -> str:
        """The limit of its control group that it reached, as `ended_by`; empty for none."""
        if self.limits is None:
            return ""
        if self.limits.oom_kills() and self.limits.reached_memory():
            return f"takes more than {self.task.memory_mb} MB of memory (sandbox.images.build_memory_mb)"
        most = self.limits.most_processes()
        if self.limits.refused_processes() and (most is None or most >= _PROCESSES):
            return f"starts more than {_PROCESSES:,} processes and threads at once"
        return ""

    def _check_machine(self, text: str) -> None:
        """SandboxError if a limit of a group above, or the machine's own, took memory or processes from it."""
        if self.limits is not None and self.limits.oom_kills():
            raise SandboxError(self._from_outside(text))
        if self.limits is not None and self.limits.refused_processes():
            raise SandboxError(
                f"{self.task.what} failed{at_step(text)}: a limit of this machine refused it processes: raise pids.max of the control groups above"
                " (TasksMax of a systemd unit, --pids-limit of a container)"
            )

    def _from_outside(self, text: str) -> str:
        return f"{self.task.what} was ended from outside{at_step(text)}: see the kernel's log on this machine, mostly for lack of memory"

    def _free(self) -> int:
        """Bytes free on its disk; 0 where no further files fit. Some file systems do not count files."""
        found = os.statvfs(self.task.grows)
        if found.f_files and found.f_favail < _FEW_FILES:
            return 0
        return shutil.disk_usage(self.task.grows).free

    def _end(self, reason: str) -> None:
        self.ended_by = self.ended_by or reason
        self.process.kill()

    async def watch_disk(self) -> None:
        grows, most = self.task.grows, self.task.disk_mb << 20
        base = await anyio.to_thread.run_sync(_used, grows)
        while True:
            await anyio.sleep(_POLL_S)
            # The exact measure takes long, and is taken only where the disk has lost as much.
            if self.free[0] - self._see() > most and (
                await anyio.to_thread.run_sync(_used, grows) - base > most
            ):
                self._end(f"takes more than {self.task.disk_mb} MB of disk space (sandbox.images.build_mb)")
            if over := self._over():
                self._end(over)

    def _see(self) -> int:
        now = self._free()
        self.free = self.free[0], min(self.free[1], now)
        return now

    async def watch_time(self) -> None:
        await anyio.sleep(self.task.time_s)
        self.late = not self.ended_by
        self._end(f"takes longer than {self.task.time_s:g} s ({self.task.time_from})")

    async def read(self, log: Log | None) -> None:
        """Read its output to the end."""
        assert self.process.stdout is not None
        total = 0
        async for data in self.process.stdout:
            total += len(data)
            self.tail += data
            del self.tail[:-_KEPT]
            if log is not None:
                log(data.decode(errors="replace"))
            if total > _MAX_OUTPUT:
                self._end(f"prints more than {_MAX_OUTPUT >> 20} MB")
                break

    def result(self) -> str:
        """The end of its output, once it has ended. Errors as those of `run`."""
        text, what, code = self.tail.decode(errors="replace"), self.task.what, self.process.returncode or 0
        if not code and not self.ended_by:
            return text
        if over := self.ended_by or self._over():
            raise (BuildTimedOut if self.late else ImageRefused)(f"{what} {over}{at_step(text)}")
        if code == FAILED and "cannot be shut off" in text:
            raise SandboxError(text.strip().splitlines()[-1])
        self._check_machine(text)
        self._see()
        self._check_room()
        if (code < 0 or code > _SIGNALLED) and not has_ended_itself(text):
            raise SandboxError(self._from_outside(text))
        kind = (
            BuildOutOfSpace
            if is_out_of_space(text)
            else DownloadFailed
            if is_download(text)
            else ImageRefused
        )
        raise kind(complaint(what, text))

    def _check_room(self) -> None:
        """SandboxFull if there was too little to begin with, MachineFault if the program, or another, used up the rest."""
        before, least = self.free
        if least < _NO_ROOM:
            remedy = (
                "free space there (files too: df -i), or name another directory (sandbox.images.directory)"
            )
            if before < _LITTLE_ROOM:
                raise SandboxFull(f"the disk of {self.task.grows} has no room for builds: {remedy}")
            raise MachineFault(
                f"the disk of {self.task.grows} became full during a build, which may take {self.task.disk_mb} MB (sandbox.images.build_mb): {remedy}"
            )


def _used(directory: Path) -> int:
    """Bytes on disk below a directory, as far as we may read it."""
    most = 1 << 62
    return TreeUsage(most_bytes=most, most_files=most).add(directory).bytes
