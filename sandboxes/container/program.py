"""A program in a container of its own.

Process 1 inside is a shell that waits for the program and, at the same time, for the end of a pipe (a FIFO, bound in) whose other end the owner
holds. So everything inside ends with the program, since it ends with process 1, and with a killed owner, since the kernel then closes the pipe: an
engine would let it run on. A program may spoil the latter for itself by holding the pipe too; then the heir ends it (heir.py).

    owner ── leash (only held) ──▶ process 1 ◀── leash: the program's exit code ── its parent
    owner ◀── status: "started", from before the program began: who says so cannot take it back
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.abc

from sandboxes import procfs
from sandboxes.base import KilledBy, SandboxError
from sandboxes.cgroups import Cgroup, of_process
from sandboxes.container.engine import Engine, said
from sandboxes.program import Bounds, Launch, Program

INSIDE = "/run/penstock-program"
"""Where the directory of one program is bound: its variables, and both pipes."""
MARK = "PENSTOCK_PROGRAM"
_LEASH, _STATUS, _VARIABLES = "leash", "status", "variables"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIE_S = 20.0
_AGAIN_S = 0.2
SCRIPT = "\n".join(
    (
        f". {INSIDE}/{_VARIABLES} || exit 125",
        f"echo started >{INSIDE}/{_STATUS} || exit 125",
        'cd -- "$1" || exit 126; shift',
        "exec 3<&0 </dev/null",
        f'("$@" <&3 3<&-; echo $? >{INSIDE}/{_LEASH}) &',
        f"exec 3<&-; read -r code <{INSIDE}/{_LEASH}; exit ${{code:-137}}",
    )
)
"""What process 1 does. $1 is the directory to begin in, the rest the program."""


def prepare(directory: Path, variables: Mapping[str, str], owner: tuple[int, int] | None) -> tuple[int, int]:
    """Make what a program finds at `INSIDE`. Returns (leash, status): descriptors that the owner keeps open until it is over.

    `ValueError` for variables that no shell can set.
    """
    for name, value in variables.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"a container's programs cannot be given the variable {name!r}")
    directory.mkdir(mode=0o711)
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    file = directory / _VARIABLES
    file.touch(mode=0o600)
    file.write_bytes(os.fsencode(text))
    file.chmod(0o400)
    for name in (_LEASH, _STATUS):
        os.mkfifo(directory / name)
        (directory / name).chmod(0o600)
    if owner is not None:
        for name in (_VARIABLES, _LEASH, _STATUS):
            os.chown(directory / name, *owner)
    leash = os.open(directory / _LEASH, os.O_RDWR | os.O_CLOEXEC)
    return leash, os.open(directory / _STATUS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


class ContainerProgram(Program):
    """`launch.argv` is an engine's `run` in the foreground, of the container `name` with `mark` among its variables."""

    def __init__(
        self, launch: Launch, bounds: Bounds, stdin: bytes | None, engine: Engine, name: str, pipes: tuple[int, int]
    ) -> None:  # fmt: skip
        self._engine = engine
        self._name = name
        self._pipes = pipes
        self._first: int | None = None
        self._inside: Cgroup | None = None
        self._cpu_max = 0.0
        self._ooms = 0
        super().__init__(launch, bounds, stdin)

    async def strike(self) -> None:
        """Again and again until the client is gone: a container that is still being made cannot be ended yet."""
        if self._find() is not None:
            assert self._first is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
            return
        while self._popen.returncode is None:
            with contextlib.suppress(SandboxError):
                await self._engine.call("kill", "--signal=KILL", self._name)
            await anyio.sleep(_AGAIN_S)

    async def settle(self) -> None:
        deadline = time.monotonic() + _DIE_S
        while procfs.kill(procfs.marked(MARK, self._name)):
            if time.monotonic() > deadline:
                raise SandboxError(f"processes of the container {self._name} do not die")
            await anyio.sleep(0.005)
        if self._popen.returncode:  # whatever the client could not finish
            await self._engine.remove(self._name)

    def exit_code(self) -> int:
        code = self._popen.returncode
        if self._started():
            return 128 - code if code < 0 else code
        complaint = said(bytes(self._captures[1].kept))
        raise SandboxError(
            f"{self._engine.settings.engine} did not start a program (exit code {code}): {complaint}"
        )

    def living(self) -> list[int]:
        return [] if self._find() is None else self._pids()

    def cpu_s(self) -> float:
        if self._result is None and (group := self._find()) is not None:
            with contextlib.suppress(OSError):
                self._cpu_max = max(self._cpu_max, group.cpu_s())
        return self._cpu_max

    def _overuse(self) -> KilledBy:
        if self.cpu_s() > self._bounds.limits.cpu_s:
            return KilledBy.CPU
        group = self._find()
        if group is not None:
            with contextlib.suppress(OSError):
                self._ooms = max(self._ooms, group.oom_kills())
        return KilledBy.MEMORY if self._ooms else KilledBy.NONE

    def _find(self) -> Cgroup | None:
        """The container's control group, once it runs, where its processes can be seen from here."""
        if self._inside is None:
            for pid in procfs.marked(MARK, self._name):
                with contextlib.suppress(OSError):
                    self._first, self._inside = pid, of_process(pid)
                    break
        return self._inside

    def _pids(self) -> list[int]:
        return [] if self._inside is None else self._inside.pids()

    def _started(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._pipes[1], 64).startswith(b"started")
        return False

    def _close_fds(self) -> None:
        super()._close_fds()
        for fd in self._pipes:
            os.close(fd)
