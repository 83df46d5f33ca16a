"""The session of a sandbox: the namespaces that all its programs share, created by bubblewrap. It lives as long as its process 1.

Process 1 (holder.py) reads from a pipe to which its owner never writes. No process inside can end or stop it: the kernel shields process 1 from
signals of its own namespace, and its memory and descriptors are hidden. It collects orphans, since it ignores SIGCHLD. It has no power over other
processes: the owner starts all programs in its namespaces (join.py). It ends with bubblewrap, which ends with the
owner. Then the kernel ends every other process in the namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess

import anyio

from sandboxes import procfs
from sandboxes.base import SandboxError, SandboxLost, SandboxSpent
from sandboxes.cgroups import Cgroup
from sandboxes.ready import readable
from sandboxes.spawned import Launch

_READY_S, _DIE_S, _COMPLAINT_S = 30.0, 10.0, 1.0


class Session:
    """`launch.argv` must end up as `bwrap --json-status-fd` with the write end of `status_fd`'s pipe, and holder.py's program as process
    1. `cgroup`: that of the sandbox's programs, if there is one."""

    def __init__(self, launch: Launch, status_fd: int, cgroup: Cgroup | None) -> None:
        self._status_fd = status_fd
        self._cgroup = cgroup
        self._oom_kills = self._kills()
        self.pid = 0
        self.killed = False  # by its owner
        self.pidfd = -1
        leash, self._leash = os.pipe2(os.O_CLOEXEC)
        self._ready_pipe, ready_write = os.pipe2(os.O_CLOEXEC)
        self._complaints, complaints = os.pipe2(os.O_CLOEXEC)
        try:
            self._popen: subprocess.Popen[bytes] = launch.spawn(leash, ready_write, complaints)
        finally:
            for fd in (leash, ready_write, complaints):
                os.close(fd)
        self._monitor = os.pidfd_open(self._popen.pid)

    async def ready(self) -> None:
        """Return when programs can be started inside. `SandboxLost` if the session does not start (no program has run in it
        yet); it must be ended in that case too."""
        with anyio.move_on_after(_READY_S):
            await anyio.wait_readable(self._ready_pipe)
        os.set_blocking(self._ready_pipe, False)
        received = b""
        with contextlib.suppress(BlockingIOError):
            received = os.read(self._ready_pipe, 16)
        if not received:
            raise SandboxLost(f"bubblewrap failed: {await self._complaint()}")
        self.pid = json.loads(os.read(self._status_fd, 4096).partition(b"\n")[0])["child-pid"]
        with contextlib.suppress(ProcessLookupError):
            self.pidfd = os.pidfd_open(self.pid)
        if self.ending:
            raise SandboxLost("the first process of a sandbox has ended as soon as it was there")

    async def _complaint(self) -> str:
        os.set_blocking(self._complaints, False)
        with anyio.move_on_after(_COMPLAINT_S):
            await anyio.wait_readable(self._monitor)
        with contextlib.suppress(BlockingIOError):
            return os.read(self._complaints, 4096).decode(errors="replace").strip() or "silently"
        return "silently"

    @property
    def alive(self) -> bool:
        """False once process 1 has ended, which it does after all others."""
        return self.pidfd >= 0 and not readable(self.pidfd)

    @property
    def ending(self) -> bool:
        """True from the moment when process 1 starts to exit: before the kernel kills the others because of it."""
        return procfs.dying(self.pid) or not self.alive  # in this order: the pid was still its own

    def check(self) -> None:
        """Raise `ended_by_others` unless it lives or its owner ended it. Its background programs are gone, so the sandbox must not continue."""
        if self.pidfd < 0 or self.killed:
            return
        if self.ending:
            raise self.ended_by_others()
        self._oom_kills = self._kills()

    def ended_by_others(self) -> SandboxError:
        """`SandboxSpent` if the kernel has ended processes of its programs for lack of memory since the last `check`: then the programs had a part in
        it. Else `SandboxLost`, since no program inside can end process 1."""
        if self._kills() > self._oom_kills:
            return SandboxSpent("the session of a sandbox ended when its programs had used up their memory")
        return SandboxLost("the session of a sandbox was ended from outside")

    def _kills(self) -> int:
        return 0 if self._cgroup is None else self._cgroup.oom_kills()

    def living(self) -> list[int]:
        """Process 1 and its children: the processes that belong to no `SupervisedProgram`."""
        return procfs.tree(self.pid) if self.alive else []

    def kill(self) -> None:
        """SIGKILL to process 1, and so to every process."""
        self.killed = True
        for fd in (self.pidfd, self._monitor):
            if fd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)

    async def end(self) -> None:
        """End every process, and return when they are dead. `SandboxError` if they do not die."""
        self.kill()
        try:
            with anyio.move_on_after(_DIE_S) as scope:
                await anyio.wait_readable(self._monitor)
                self._popen.wait()
                if self.pidfd >= 0:
                    await anyio.wait_readable(self.pidfd)
            if scope.cancelled_caught:
                raise SandboxError(f"process {self.pid} of a sandbox does not die")
        finally:
            self._close()

    def _close(self) -> None:
        for fd in (
            self._status_fd,
            self._leash,
            self._ready_pipe,
            self._complaints,
            self._monitor,
            self.pidfd,
        ):
            if fd >= 0:
                os.close(fd)
        self.pidfd = -1
