"""A program whose first process is a child of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from sandboxes.base import Limits
from sandboxes.program import ProgramBounds, Streams, SupervisedProgram

_HOME = str(Path(__file__).resolve().parents[1])
_MARKS = "PENSTOCK_"


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
                self.argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=self.env,
                cwd=self.cwd,
                pass_fds=self.pass_fds,
                start_new_session=True,
            )
        finally:
            for fd in self.pass_fds:
                os.close(fd)


def entering(
    argv: Sequence[str], env: Mapping[str, str], *, cwd: str = "/", limits: Limits | None = None
) -> Launch:
    """`argv` as a child that starts in the state of every sandbox's programs, whatever ours is (inside/enter.py). ValueError for a NUL."""
    for text in (*argv, *env, *env.values(), cwd):
        if b"\0" in os.fsencode(text):
            raise ValueError("embedded null byte")
    bounds = None if limits is None else asdict(limits)
    task = os.memfd_create("task", os.MFD_CLOEXEC)
    with open(task, "wb", closefd=False) as file:
        file.write(json.dumps({"argv": list(argv), "env": dict(env), "cwd": cwd, "limits": bounds}).encode())
    os.lseek(task, 0, os.SEEK_SET)
    command = [sys.executable, "-S", "-m", "sandboxes.inside.enter", str(task)]
    marks = {name: value for name, value in env.items() if name.startswith(_MARKS)}
    return Launch(argv=command, env={**marks, "PYTHONPATH": _HOME}, pass_fds=(task,))


class Spawned(SupervisedProgram):
    """Over when its first process is. Subclasses define which other processes belong to it."""

    def __init__(self, launch: Launch, bounds: ProgramBounds, stdin: bytes | None) -> None:
        try:
            streams = Streams(given=stdin is not None)
        except OSError:
            for fd in launch.pass_fds:
                os.close(fd)
            raise
        try:
            self._popen = launch.spawn(*streams.theirs)
        except BaseException:
            streams.close()
            raise
        streams.close(*streams.theirs)
        try:
            self._pidfd = os.pidfd_open(self._popen.pid)
        except OSError:
            streams.close()
            self._popen.kill()
            self._popen.wait()
            raise
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
