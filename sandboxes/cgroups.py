"""Control groups for a sandbox: version 2, version 1, or none (the caller then falls back to rlimits).

One group per sandbox and hierarchy, `<mount>/penstock/<sandbox id>`, made at open and removed at close. The
version is found out once, by putting a process into a group, since writable files do not mean delegation.
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
from dataclasses import dataclass
from pathlib import Path

from sandboxes.base import Limits, SandboxError

_BASE = "penstock"
_V1_CONTROLLERS = ("memory", "pids", "cpuacct")


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where groups can be made: one mount for version 2, one per controller for version 1."""

    version: int
    mounts: tuple[Path, ...]

    def create(self, name: str, limits: Limits) -> Cgroup:
        """A group with its limits set. `SandboxError` when the kernel refuses."""
        group = Cgroup(self.version, tuple(mount / _BASE / name for mount in self.mounts))
        try:
            for directory in group.directories:
                _make(directory, self.version)
            for directory, file, value in _settings(group, limits):
                if (directory / file).exists():
                    (directory / file).write_text(value)
        except OSError as error:
            group.remove()
            raise SandboxError(f"cannot set up the control group {name}: {error}") from error
        return group


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One sandbox's group. Counters are read straight from the kernel on every call."""

    version: int
    directories: tuple[Path, ...]

    def attach_script(self) -> str:
        """Shell commands by which a process puts itself into the group."""
        return "".join(
            f"echo 0 >{shlex.quote(str(d / 'cgroup.procs'))} || exit 125; " for d in self.directories
        )

    def cpu_s(self) -> float:
        """CPU seconds used so far by everything that ever ran in the group."""
        if self.version == 1:
            return int((self.directories[2] / "cpuacct.usage").read_text()) / 1e9
        return _counter(self.directories[0] / "cpu.stat", "usage_usec") / 1e6

    def oom_kills(self) -> int:
        """How many processes the kernel has ended for want of memory."""
        if self.version == 1:
            return _counter(self.directories[0] / "memory.oom_control", "oom_kill")
        return _counter(self.directories[0] / "memory.events", "oom_kill")

    def pids(self) -> list[int]:
        """The processes in the group, as numbered here."""
        found: set[int] = set()
        for directory in self.directories:
            with contextlib.suppress(FileNotFoundError):
                found.update(int(line) for line in (directory / "cgroup.procs").read_text().split())
        return sorted(found)

    def remove(self, timeout_s: float = 5.0) -> None:
        """End what is left in the group and remove it. Blocks; `SandboxError` if a process will not die."""
        deadline = time.monotonic() + timeout_s
        for directory in self.directories:
            while not _gone(directory):
                for pid in self.pids():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if time.monotonic() > deadline:
                    raise SandboxError(f"processes {self.pids()} of {directory} do not die")
                time.sleep(0.002)
            with contextlib.suppress(OSError):  # the shared parent goes with its last child
                directory.parent.rmdir()


def from_directories(directories: Sequence[str]) -> Cgroup:
    """A group known only by its recorded directories, for cleaning up after a dead owner."""
    return Cgroup(1 if len(directories) > 1 else 2, tuple(Path(directory) for directory in directories))


def of_process(pid: int, mountinfo: Path = Path("/proc/self/mountinfo")) -> Cgroup | None:
    """The group that somebody else made and put the process into; None in the topmost one, or where there are no groups. OSError when it is gone."""
    within: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        within |= {name: path.lstrip("/") for name in controllers.split(",")}
    for found in candidates(mountinfo.read_text()):
        names = ("",) if found.version == 2 else _V1_CONTROLLERS
        paths = [within.get(name, "") for name in names]
        if all(paths):
            directories = (mount / path for mount, path in zip(found.mounts, paths, strict=True))
            return Cgroup(found.version, tuple(directories))
    return None


def detect(mountinfo: Path = Path("/proc/self/mountinfo")) -> Hierarchies | None:
    """What works here: version 2 if it carries memory and pids, else version 1, else nothing."""
    for candidate in candidates(mountinfo.read_text()):
        try:
            group = candidate.create(f"probe-{secrets.token_hex(4)}", Limits())
        except SandboxError:
            continue
        try:
            script = f"{group.attach_script()} exit 0"
            if (
                subprocess.run(["/bin/sh", "-c", script], stderr=subprocess.DEVNULL, check=False).returncode
                == 0
            ):
                return candidate
        finally:
            group.remove()
    return None


def candidates(mountinfo: str) -> list[Hierarchies]:
    """The hierarchies that a mount table offers, best first. Nothing is tried yet."""
    second: list[Hierarchies] = []
    first: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        where, (kind, _, options) = Path(_unescape(left.split()[4])), right.split(" ", 2)
        if kind == "cgroup2":
            controllers = where / "cgroup.controllers"
            offered = controllers.read_text().split() if controllers.exists() else []
            if {"memory", "pids"} <= set(offered):
                second.append(Hierarchies(2, (where,)))
        elif kind == "cgroup":
            first |= {name: where for name in options.split(",") if name in _V1_CONTROLLERS}
    if len(first) == len(_V1_CONTROLLERS):
        second.append(Hierarchies(1, tuple(first[name] for name in _V1_CONTROLLERS)))
    return second


def _make(directory: Path, version: int) -> None:
    for _ in range(20):  # another process may remove the empty parent between our two steps
        with contextlib.suppress(FileExistsError):  # there, or removed again since the kernel said so
            directory.parent.mkdir()
        if version == 2:
            for level in (directory.parent.parent, directory.parent):
                with contextlib.suppress(FileNotFoundError):
                    (level / "cgroup.subtree_control").write_text("+memory +pids")
        try:
            directory.mkdir()
            return
        except FileNotFoundError:
            continue
    raise SandboxError(f"cannot make {directory}")


def _settings(group: Cgroup, limits: Limits) -> list[tuple[Path, str, str]]:
    memory = str(limits.memory_mb << 20)
    if group.version == 2:
        directory = group.directories[0]
        return [
            (directory, "memory.max", memory),
            (directory, "memory.swap.max", "0"),
            (directory, "memory.oom.group", "1"),
            (directory, "pids.max", str(limits.processes)),
        ]
    # cpuacct only counts. memsw exists only where the kernel accounts for swap.
    return [
        (group.directories[0], "memory.limit_in_bytes", memory),
        (group.directories[0], "memory.memsw.limit_in_bytes", memory),
        (group.directories[1], "pids.max", str(limits.processes)),
    ]


def _gone(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # busy: something still runs in it
        return False
    return True


def _counter(file: Path, key: str) -> int:
    match = re.search(rf"^{key} (\d+)$", file.read_text(), re.MULTILINE)
    return int(match.group(1)) if match else 0


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), path)
