"""The session of a sandbox: one container that lives as long as its process 1. The engine's `exec` starts all programs in it (program.py).

Process 1 is a shell. Its child waits for the end of a pipe (a FIFO, bound in) whose other end the owner holds. Process 1 waits for that child, and
collects orphans while it waits. When the owner ends, the kernel closes the pipe. When process 1 ends, the kernel ends every other process in the
container. If the sandbox has its own user, process 1 and its child have another one: no program can signal them, inspect them, or hold their pipe.

Programs are distinguished by *parts* of the container's control group, created by the owner. If it may not create them, or cannot see the
container's processes, parts do not exist. Ending a program then ends the whole session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from sandboxes import procfs, tree
from sandboxes.base import SandboxError
from sandboxes.cgroups import Cgroup, CgroupPart, of_process
from sandboxes.container.engine import ENTERING, ContainerEngine, ContainerRun, error_text
from sandboxes.ready import readable

INSIDE = "/run/penstock-program"
"""Where the pipes and variables of session and programs are bound."""
MARK = "PENSTOCK_SESSION"
_LEASH, _STATUS = "leash", "status"
HOLD = "\n".join(
    (
        f'exec 3<"{INSIDE}/$1/{_LEASH}" || exit 125',
        "(read -r _ <&3) &",
        f'echo started >"{INSIDE}/$1/{_STATUS}" || exit 125',
        "wait",
    )
)
"""The script of process 1. $1 is the name of its directory. Shells collect every child while they wait for one."""
_READY_S, _DIE_S = 30.0, 20.0
_SOON_S = 0.002
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class _Group(Cgroup):
    """A container's group, which is removed with the container. Its counters then keep their last values."""

    seen: dict[str, float] = field(default_factory=dict, compare=False)

    def oom_kills(self) -> int:
        with contextlib.suppress(OSError):
            self.seen["ooms"] = Cgroup.oom_kills(self)
        return int(self.seen.get("ooms", 0))

    def cpu_s(self) -> float:
        with contextlib.suppress(OSError):
            self.seen["cpu"] = Cgroup.cpu_s(self)
        return self.seen.get("cpu", 0.0)

    def refused_processes(self) -> int:
        with contextlib.suppress(OSError):
            self.seen["refused"] = Cgroup.refused_processes(self)
        return int(self.seen.get("refused", 0))


class ContainerSession:
    """`directory`: on this machine, bound below `INSIDE` by its name. `owner`: the user of process 1, None: our own."""

    def __init__(
        self, engine: ContainerEngine, name: str, *, directory: Path, owner: tuple[int, int] | None
    ) -> None:
        self.name = name
        self.engine = engine
        self.sure = owner is not None
        """Whether no process inside can end process 1."""
        self.killed = False  # by its owner
        self.group: Cgroup | None = None
        self._first: CgroupPart | None = None
        self._pidfd = -1
        self._seen = False
        self._ended = False
        self._killing = anyio.Lock()
        tree.make_passable(directory)
        self._leash = fifo(directory / _LEASH, owner)
        self._status = fifo(directory / _STATUS, owner)

    @property
    def parts(self) -> bool:
        """Whether programs can be distinguished."""
        return self._first is not None

    async def begin(self, run: ContainerRun, env: Mapping[str, str]) -> None:
        """Start the container. Returns when programs can be started inside; `SandboxError` if that fails. The caller must call `end` in any case."""
        result = await self.engine.call(
            *self.engine.run(run), env=env, timeout_s=_READY_S * 2, cwd=run.seccomp.parent
        )
        if result.returncode:
            failure = (
                f"{self.engine.settings.engine} did not start a container (exit code {result.returncode})"
            )
            raise SandboxError(f"{failure}: {error_text(result.stderr)}")
        with anyio.move_on_after(_READY_S) as scope:
            await anyio.wait_readable(self._status)
        if scope.cancelled_caught:
            raise SandboxError(f"the first process of the container {self.name} did not start")
        for pid in procfs.marked(MARK, self.name):
            with contextlib.suppress(OSError):
                self._pidfd, self._seen = os.pidfd_open(pid), True
                self._take(pid)
                return

    def _take(self, pid: int) -> None:
        """Only process 1 and its child run: check whether parts can be created, by putting these two into one."""
        found = of_process(pid)
        if found is None:
            return
        self.group = _Group(found.version, found.directories)
        try:
            self._first = self.group.part("session")
            self.settle_in(self._first)
        except OSError:
            self._first = None

    @property
    def alive(self) -> bool:
        """Whether it lives, as far as that can be seen."""
        if not self._seen:
            return not self.killed
        return self._pidfd >= 0 and not readable(self._pidfd)

    @property
    def occupied(self) -> bool:
        """Whether programs may be running, as far as that can be seen."""
        return self.group is None or bool(self.living())

    def part(self, name: str) -> CgroupPart | None:
        """Create the part of one program. OSError if the kernel refuses."""
        return self.group.part(name) if self.group is not None and self.parts else None

    def limit(self, processes: int, *, entering: bool = False) -> None:
        """Let programs have so many processes. `entering`: and the engine some more to start the next one, also if programs have used up all of
        theirs. A program that multiplies without pause can take those: the next one then does not start (program.py)."""
        if self.group is not None and self.parts:
            with contextlib.suppress(OSError):  # the container has ended
                self.group.limit_processes(processes + ENTERING if entering else processes)

    def refused_processes(self) -> int:
        """How often the kernel has refused a process in the container; 0 if that cannot be seen."""
        return 0 if self.group is None else self.group.refused_processes()

    def settle_in(self, part: CgroupPart) -> None:
        """Move every process that is in no part into `part`. Programs start one at a time, so these are the newest program and the processes that
        it has started already. SandboxError if they multiply without end."""
        top = part.directory.parent / "cgroup.procs"
        for _ in range(_ROUNDS):
            pids = top.read_text().split()
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (part.directory / "cgroup.procs").write_text(pid)
        raise SandboxError(f"a program of the container {self.name} cannot be counted")

    def living(self) -> list[int]:
        """The processes of all programs, as far as they can be seen."""
        if self.group is None or not self.alive:
            return []
        session_pids = set() if self._first is None else set(self._first.pids())
        return [pid for pid in self.group.pids() if pid not in session_pids]

    async def kill(self) -> None:
        """SIGKILL to process 1, and so to every process. Returns when they are dead; `SandboxError` if they do not die."""
        self.killed = True
        async with self._killing:
            await self._kill()

    async def _kill(self) -> None:
        if self._ended:
            return
        if not self._seen:
            # `rm` alone would send SIGTERM first, and wait.
            await self.engine.call("kill", "--signal=KILL", self.name)
            await self.engine.remove(self.name)
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with anyio.move_on_after(_DIE_S) as scope:
            await anyio.wait_readable(self._pidfd)
        if scope.cancelled_caught:
            raise SandboxError(f"processes of the container {self.name} do not die")

    async def end(self) -> None:
        """End every process and remove the container."""
        if self._ended:
            return
        try:
            await self.kill()
            await self.engine.remove(self.name)
            await self._gone()
        finally:
            self._ended = True
            for fd in (self._leash, self._status, self._pidfd):
                if fd >= 0:
                    os.close(fd)
            self._pidfd = -1

    async def _gone(self) -> None:
        """Return when every process of the container is dead, also if it was just being created."""
        deadline = time.monotonic() + _DIE_S
        while procfs.kill(procfs.marked(MARK, self.name)):
            if time.monotonic() > deadline:
                raise SandboxError(f"processes of the container {self.name} do not die")
            await anyio.sleep(_SOON_S)


def fifo(path: Path, owner: tuple[int, int] | None) -> int:
    """Create a FIFO for its owner alone. Returns a descriptor of both its ends: a program that opens it inside does not wait, and sees no end
    before the descriptor is closed."""
    os.mkfifo(path, 0o600)
    if owner is not None:
        os.chown(path, *owner)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
