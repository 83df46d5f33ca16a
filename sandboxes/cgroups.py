"""Control groups for a sandbox: version 2, version 1, or none (the caller then falls back to rlimits).

One group per sandbox and hierarchy, `<mount>/penstock/<sandbox id>`, created at open and removed at close. The
version is detected once, by putting a process into a group, since writable files do not imply delegation. Below the group every program has its own
part. It identifies the program's processes, regardless of the sessions and parents that they choose.

The session (session.py) has a group without limits next to it, `<sandbox id>-session`: where programs use up their memory, the kernel chooses among
the processes of the limited group, or ends all of them. Process 1 must not be one of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandboxes import procfs
from sandboxes.base import Limits, SandboxError
from sandboxes.machine import fault

_BASE = "penstock"
_PROBE = "probe-"
_SESSION = "-session"
_PROBE_S = 60.0  # longer than any probe, for those whose owner cannot be judged here
_V1_CONTROLLERS = ("memory", "pids", "cpuacct")
_V1_WITH_CORES = ("memory", "pids", "cpu", "cpuacct")
_PERIOD_US = 100_000
_CORES = {2: "cpu.max", 1: "cpu.cfs_quota_us"}
_PAGES = 1 << 20  # the kernel refuses several pages at once: the use ends as much below the limit
_MIN_US = 1_000  # the kernel takes no smaller quota


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The mounts in which groups can be created: one mount for version 2, one per controller for version 1, the one that counts CPU time last."""

    version: int
    mounts: tuple[Path, ...]
    limits_cores: bool = field(default=False, compare=False)
    """Whether a group takes a limit of cores. `detect` finds out."""

    def create(self, name: str, limits: Limits) -> Cgroup:
        """A group with its limits set. `SandboxError` if the kernel refuses."""
        group = Cgroup(self.version, tuple(mount / _BASE / name for mount in self.mounts))
        try:
            for directory in (*group.directories, group.session):
                _make(directory, self.version)
            for directory, file, value in _settings(group, limits):
                if (directory / file).exists():
                    # A group above may have fewer.
                    with contextlib.suppress(*([OSError] if file == _CORES[1] else [])):
                        (directory / file).write_text(value)
        except OSError as error:
            group.remove()
            raise fault(error, f"cannot set up the control group {name}: {error}") from error
        return group


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One sandbox's group. Counters are read straight from the kernel on every call."""

    version: int
    directories: tuple[Path, ...]

    @property
    def session(self) -> Path:
        """The group of the sandbox's session, in the hierarchy that limits memory."""
        return self.directories[0].with_name(f"{self.directories[0].name}{_SESSION}")

    def attach_script(self) -> str:
        """Shell commands that put the calling process into the group of programs."""
        return "".join(map(_attach, self.directories))

    def session_script(self) -> str:
        """Shell commands that put the calling process into the group of the session."""
        return _attach(self.session)

    def part(self, name: str) -> CgroupPart:
        """Create a part of the group, for one program and the processes that it starts. The limits are those of the whole group. OSError if the
        kernel refuses."""
        directory = self.directories[-1] / name
        directory.mkdir()
        return CgroupPart(self.version, directory, (*self.directories[:-1], directory))

    def cpu_s(self) -> float:
        """CPU seconds used so far by everything that ever ran in the group."""
        if self.version == 1:
            return int((self.directories[-1] / "cpuacct.usage").read_text()) / 1e9
        return _counter(self.directories[0] / "cpu.stat", "usage_usec") / 1e6

    def limits_cores(self) -> bool:
        """Whether the kernel takes a limit of cores for this group."""
        return any((directory / _CORES[self.version]).exists() for directory in self.directories)

    def oom_kills(self) -> int:
        """How many processes of programs the kernel has ended for lack of memory below its limit, in a group above, or on the machine."""
        if self.version == 1:
            return _counter(self.directories[0] / "memory.oom_control", "oom_kill")
        return _counter(self.directories[0] / "memory.events", "oom_kill")

    def reached_memory(self) -> bool:
        """Whether memory has run short below the limit of this group itself."""
        if self.version == 2:
            return _counter(self.directories[0] / "memory.events", "oom") > 0
        # memsw exists only where the kernel accounts for swap, and then refuses first. Newer kernels leave failcnt at 0.
        for kind in ("memory", "memory.memsw"):
            most, limit = (
                self.directories[0] / f"{kind}.{name}" for name in ("max_usage_in_bytes", "limit_in_bytes")
            )
            if most.exists() and int(most.read_text()) >= int(limit.read_text()) - _PAGES:
                return True
        return False

    def limit_processes(self, count: int) -> None:
        """Allow `count` processes from now on; running ones stay. OSError if the kernel refuses."""
        (self._processes / "pids.max").write_text(str(count))

    def refused_processes(self) -> int:
        """How often the kernel has refused a process, for lack of room below this group's limit, or that of a group above."""
        return _counter(self._processes / "pids.events", "max")

    def most_processes(self) -> int | None:
        """The most processes that it has had at once; None before Linux 6.1, which does not count them."""
        try:
            return int((self._processes / "pids.peak").read_text())
        except FileNotFoundError:
            return None

    @property
    def _processes(self) -> Path:
        return self.directories[0 if self.version == 2 else 1]

    def pids(self) -> list[int]:
        """The processes of programs, numbered as in this pid namespace."""
        return sorted({pid for directory in self.directories for pid in _below(directory)})

    def remove(self, timeout_s: float = 5.0) -> None:
        """End the remaining processes, those of the session too, and remove the groups. Blocks. `SandboxError` if a process does not die."""
        deadline = time.monotonic() + timeout_s
        for directory in (self.session, *self.directories):
            while not _gone(directory):
                for pid in (found := [*_below(self.session), *self.pids()]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if time.monotonic() > deadline:
                    raise SandboxError(f"processes {found} of {directory} do not die")
                time.sleep(0.002)
            with contextlib.suppress(OSError):  # the shared parent is removed with its last child
                directory.parent.rmdir()


@dataclass(frozen=True, slots=True)
class CgroupPart:
    """A part of a sandbox's group: its processes and their use. A process that is put into `attach` joins group and part. In
    version 1 the part is a child of the group that counts CPU time, in version 2 a group without its own controllers."""

    version: int
    directory: Path
    attach: tuple[Path, ...]

    def open_fds(self) -> list[int]:
        """Descriptors, opened for writing. A process that writes 0 into each of them becomes a member, regardless of its own rights. The caller
        closes them."""
        found: list[int] = []
        try:
            for directory in self.attach:
                found.append(os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except BaseException:
            for fd in found:
                os.close(fd)
            raise
        return found

    def cpu_s(self) -> float:
        """CPU seconds used so far by everything that ever ran in it."""
        if self.version == 1:
            return int((self.directory / "cpuacct.usage").read_text()) / 1e9
        return _counter(self.directory / "cpu.stat", "usage_usec") / 1e6

    def pids(self) -> list[int]:
        """Its processes, numbered as in this pid namespace."""
        return _members(self.directory)

    def kill(self) -> None:
        """SIGKILL to every member. All are stopped first, so that none escapes by forking."""
        with contextlib.suppress(OSError):
            (self.directory / "cgroup.kill").write_text("1")
            return
        procfs.halt(self.pids)

    def remove(self) -> None:
        """Remove it once it has no processes. If that fails, it is removed with the whole group."""
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def from_directories(directories: Sequence[str]) -> Cgroup:
    """A group known only by its recorded directories, for cleaning up after a dead owner."""
    return Cgroup(1 if len(directories) > 1 else 2, tuple(Path(directory) for directory in directories))


def of_process(pid: int, mountinfo: Path = Path("/proc/self/mountinfo")) -> Cgroup | None:
    """The existing group of a process that another program put there. None for the root group, or without groups. OSError if the process is gone."""
    within: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        within |= {name: path.lstrip("/") for name in controllers.split(",")}
    for found in candidates(mountinfo.read_text()):
        names = ("",) if found.version == 2 else _V1_WITH_CORES if len(found.mounts) == 4 else _V1_CONTROLLERS
        paths = [within.get(name, "") for name in names]
        if all(paths):
            directories = (mount / path for mount, path in zip(found.mounts, paths, strict=True))
            return Cgroup(found.version, tuple(directories))
    return None


def detect(mountinfo: Path = Path("/proc/self/mountinfo")) -> Hierarchies | None:
    """The control groups that work here: version 2 if it has memory and pids, else version 1, else None."""
    for candidate in candidates(mountinfo.read_text()):
        try:
            group = candidate.create(own_name(), Limits())
        except SandboxError:
            continue
        try:
            script = f"{group.session_script()}{group.attach_script()} exit 0"
            if (
                subprocess.run(["/bin/sh", "-c", script], stderr=subprocess.DEVNULL, check=False).returncode
                == 0
            ):
                return replace(candidate, limits_cores=group.limits_cores())
        finally:
            group.remove()
    return None


def remove_probes(mountinfo: Path = Path("/proc/self/mountinfo")) -> int:
    """Remove the groups that are named by `own_name`, probes and those of builds, if their owner was killed. Returns the number of directories."""
    try:
        mounts = {mount for found in candidates(mountinfo.read_text()) for mount in found.mounts}
    except OSError:
        return 0
    removed = 0
    for directory in (found for mount in mounts for found in _parts(mount / _BASE)):
        if directory.name.startswith(_PROBE) and _abandoned(directory):
            # A probe that still has a process ends soon: `rmdir` refuses until then.
            with contextlib.suppress(OSError):
                directory.rmdir()
                removed += 1
    return removed


def own_name() -> str:
    """A name for a group that no record names: with its owner's pid namespace, pid and start time, so that `remove_probes` removes it once this
    process is dead."""
    found = procfs.stat(os.getpid())
    assert found is not None
    return f"{_PROBE}{_namespace()}-{os.getpid()}-{found.start}-{secrets.token_hex(4)}"


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _abandoned(directory: Path) -> bool:
    """Whether the owner in its name is dead. By its age where the owner is in another pid namespace, or not named."""
    owner = re.fullmatch(rf"{_PROBE}(\d+)-(\d+)-(\d+)-[0-9a-f]+(?:{_SESSION})?", directory.name)
    if owner is not None and int(owner[1]) == _namespace():
        found = procfs.stat(int(owner[2]))
        return found is None or found.start != int(owner[3]) or found.gone
    with contextlib.suppress(OSError):
        return time.time() - directory.stat().st_mtime > _PROBE_S
    return False


def candidates(mountinfo: str) -> list[Hierarchies]:
    """The hierarchies that a mount table offers, best first. It tries none of them."""
    hierarchies: list[Hierarchies] = []
    v1_mounts: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        mount_fields, _, type_fields = line.partition(" - ")
        mount_point, (kind, _, options) = Path(_unescape(mount_fields.split()[4])), type_fields.split(" ", 2)
        if kind == "cgroup2":
            controllers = mount_point / "cgroup.controllers"
            offered = controllers.read_text().split() if controllers.exists() else []
            if {"memory", "pids"} <= set(offered):
                hierarchies.append(Hierarchies(2, (mount_point,)))
        elif kind == "cgroup":
            v1_mounts |= {name: mount_point for name in options.split(",") if name in _V1_WITH_CORES}
    if set(_V1_CONTROLLERS) <= set(v1_mounts):
        # `cpu` and `cpuacct` are one mount on many machines, under one name or under two.
        apart = v1_mounts.get("cpu", v1_mounts["cpuacct"]).resolve() != v1_mounts["cpuacct"].resolve()
        names = _V1_WITH_CORES if apart else _V1_CONTROLLERS
        hierarchies.append(Hierarchies(1, tuple(v1_mounts[name] for name in names)))
    return hierarchies


def _attach(directory: Path) -> str:
    return f"echo 0 >{shlex.quote(str(directory / 'cgroup.procs'))} || exit 125; "


def _make(directory: Path, version: int) -> None:
    for _ in range(20):  # another process may remove the empty parent between our two steps
        with contextlib.suppress(FileExistsError):  # it exists, or was removed after the kernel reported so
            directory.parent.mkdir()
        if version == 2:
            for level in (directory.parent.parent, directory.parent):
                with contextlib.suppress(FileNotFoundError):
                    (level / "cgroup.subtree_control").write_text("+memory +pids")
                # Without it, cores are not limited (`Cgroup.limits_cores`).
                with contextlib.suppress(OSError):
                    (level / "cgroup.subtree_control").write_text("+cpu")
        try:
            directory.mkdir()
            return
        except FileNotFoundError:
            continue
    raise SandboxError(f"cannot make {directory}")


def _settings(group: Cgroup, limits: Limits) -> list[tuple[Path, str, str]]:
    memory = str(limits.memory_mb << 20)
    quota = max(_MIN_US, round(limits.cpus * _PERIOD_US)) if limits.cpus > 0 else 0
    if group.version == 2:
        directory = group.directories[0]
        return [
            (directory, "memory.max", memory),
            (directory, "memory.swap.max", "0"),
            (directory, "memory.oom.group", "1"),
            (directory, "pids.max", str(limits.processes)),
            *([(directory, _CORES[2], f"{quota} {_PERIOD_US}")] if quota else []),
        ]
    # cpuacct only counts. memsw exists only where the kernel accounts for swap.
    return [
        (group.directories[0], "memory.limit_in_bytes", memory),
        (group.directories[0], "memory.memsw.limit_in_bytes", memory),
        (group.directories[1], "pids.max", str(limits.processes)),
        *([(group.directories[2], _CORES[1], str(quota))] if quota else []),
    ]


def _gone(directory: Path) -> bool:
    try:
        for part in _parts(directory):
            part.rmdir()
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # busy: a process still runs in it
        return False
    return True


def _parts(directory: Path) -> list[Path]:
    """The groups in a group, none if it is gone: the last of its processes may remove it at any moment."""
    with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(directory) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _members(directory: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(line) for line in (directory / "cgroup.procs").read_text().split()]
    return []


def _below(directory: Path) -> list[int]:
    return [pid for member in (directory, *_parts(directory)) for pid in _members(member)]


def _counter(file: Path, key: str) -> int:
    match = re.search(rf"^{key} (\d+)$", file.read_text(), re.MULTILINE)
    return int(match.group(1)) if match else 0


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), path)
