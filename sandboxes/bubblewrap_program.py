"""A program inside bubblewrap: a monitor process outside, process 1 of a pid namespace inside.

Bubblewrap reports on a pipe: first the host's number of process 1, then, if the program was really executed, its
exit code. The pipe is closed to the inside, so neither line can be forged there: a program cannot dress its own
failure up as the platform's. When process 1 is dead, the kernel has ended and reaped its whole namespace first.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import anyio
import anyio.abc

from sandboxes import procfs
from sandboxes.base import SandboxError
from sandboxes.program import Bounds, Launch, Program

_DIE_S = 10.0
_EXECVP, _CHDIR = "bwrap: execvp ", "bwrap: Can't chdir to "


class BubblewrapProgram(Program):
    """`launch.argv` must end up as `bwrap --json-status-fd` with the write end of `status_fd`'s pipe."""

    def __init__(self, launch: Launch, bounds: Bounds, stdin: bytes | None, status_fd: int) -> None:
        self._status_fd = status_fd
        self._status = b""
        self._init_pid: int | None = None
        self._init_pidfd: int | None = None
        self._introduced = anyio.Event()
        self._reported = anyio.Event()
        try:
            super().__init__(launch, bounds, stdin)
        except BaseException:
            os.close(status_fd)
            raise

    def begin(self, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(self._read_status)

    async def _read_status(self) -> None:
        os.set_blocking(self._status_fd, False)
        while True:
            await anyio.wait_readable(self._status_fd)
            data = os.read(self._status_fd, 4096)
            self._status += data
            if self._init_pid is None and b"\n" in self._status:
                self._meet(json.loads(self._status.partition(b"\n")[0]))
            if not data:
                break
        self._introduced.set()
        self._reported.set()

    def _meet(self, introduction: dict[str, int]) -> None:
        self._init_pid = introduction["child-pid"]
        self._introduced.set()
        try:
            fd = os.pidfd_open(self._init_pid)
        except ProcessLookupError:  # a program so short that all is over
            return
        if _namespace(self._init_pid) not in (None, introduction.get("pid-namespace")):
            os.close(fd)  # over as well, and its number given to another process
            return
        self._init_pidfd = fd

    async def strike(self) -> None:
        # Killing the monitor too early would orphan a process 1 that has not yet asked to die with it.
        with anyio.move_on_after(1.0):
            await self._introduced.wait()
        if self._init_pidfd is not None:
            _signal(self._init_pidfd)
        _signal(self._pidfd)

    async def settle(self) -> None:
        with anyio.move_on_after(_DIE_S):
            await self._reported.wait()
            if self._init_pidfd is not None:
                await anyio.wait_readable(self._init_pidfd)
            return
        raise SandboxError(f"process {self._init_pid} of a sandbox does not die")

    def exit_code(self) -> int:
        for line in self._status.splitlines():
            report = json.loads(line)
            if "exit-code" in report:
                return int(report["exit-code"])
        # The program never ran, so this is bubblewrap's own voice.
        said = bytes(self._captures[1].kept).decode(errors="replace").strip()
        if said.startswith(_EXECVP):
            return 127 if said.endswith("No such file or directory") else 126
        if said.startswith(_CHDIR):
            return 126
        raise SandboxError(f"bubblewrap failed with exit code {self._popen.returncode}: {said or 'silently'}")

    def living(self) -> list[int]:
        return [] if self._init_pid is None else procfs.tree(self._init_pid)

    def _close_fds(self) -> None:
        super()._close_fds()
        os.close(self._status_fd)
        if self._init_pidfd is not None:
            os.close(self._init_pidfd)


def _signal(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _namespace(pid: int) -> int | None:
    """Inode of the process's pid namespace; None when it may not be asked or is gone."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return None
