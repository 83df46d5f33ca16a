"""A program whose first process is a child of this one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio

from sandboxes.program import ProgramBounds, Streams, SupervisedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command to spawn on the host: `pass_fds` are inherited and then closed here."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    pass_fds: tuple[int, ...] = ()

    def spawn(self, stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        """Spawn it in its own session: the terminal's Ctrl-C is for us, not for the sandbox."""
        try:
            return subprocess.Popen(
                self.argv, stdin=stdin, stdout=stdout, stderr=stderr, env=self.env, cwd=self.cwd, pass_fds=self.pass_fds,
                start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in self.pass_fds:
                os.close(fd)


class Spawned(SupervisedProgram):
    """Over when its first process is. Subclasses define which other processes belong to it."""

    def __init__(self, launch: Launch, bounds: ProgramBounds, stdin: bytes | None) -> None:
        streams = Streams(given=stdin is not None)
        try:
            self._popen = launch.spawn(*streams.theirs)
        except BaseException:
            streams.close()
            raise
        streams.close(*streams.theirs)
        self._pidfd = os.pidfd_open(self._popen.pid)
        super().__init__(streams, bounds, stdin)

    async def ended(self) -> None:
        await anyio.wait_readable(self._pidfd)
        self.collect()

    def collect(self) -> None:
        """Collect the first process, which is dead: its exit status, and the CPU time of the processes that it waited for."""
        _, status, used = os.wait4(self._popen.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        self._cpu_seen = max(self._cpu_seen, used.ru_utime + used.ru_stime)

    def release(self) -> None:
        if self._popen.returncode is None:  # supervision failed
            self._popen.kill()
            self._popen.wait()
        os.close(self._pidfd)
