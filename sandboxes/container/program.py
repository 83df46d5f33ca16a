"""A program in the container of its sandbox, started inside by the engine's `exec`.

    owner ── variables, stdin, gate ──▶ the program's own shell, which becomes the program ──▶ stdout, stderr, status ── owner
    owner ◀── exit code ── the engine's client ◀── the engine, outside

All pipes are FIFOs in a directory of the program, bound into the container. Background processes can continue to write after the engine has
forgotten the program. The exit code is the one that the engine collected, outside the container. The shell reports its start and waits at its gate
until the owner has put it into its part of the container's control group. Only then does it become the program, so all its children are there, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from sandboxes import tree
from sandboxes.base import SandboxError, SandboxLost
from sandboxes.cgroups import CgroupPart
from sandboxes.container.engine import error_text
from sandboxes.container.session import INSIDE, ContainerSession, fifo
from sandboxes.program import ProgramBounds, Streams, SupervisedProgram
from sandboxes.spawned import Launch

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIE_S, _STUBBORN_S, _ENTER_S = 20.0, 2.0, 10.0
_SOON_S = 0.002
_KILLED = 128 + signal.SIGKILL
_NOT_RUN = 126
_CROWDED_OUT = b"cannot run: the sandbox's running programs have used up its processes\n"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
SCRIPT = "\n".join(
    (
        'if [ -p "$1/in" ]; then exec <"$1/in" || exit 125; else exec </dev/null; fi',
        'exec >"$1/out" 2>"$1/err" || exit 125',
        'echo started >"$1/status" || exit 125',
        'read -r go <"$1/gate" && [ "$go" = go ] || exit 137',
        '. "$1/variables" || exit 125',
        '{ ulimit -u "$2" || ulimit -p "$2"; } 2>/dev/null',
        "{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null",  # killed first, long before process 1
        'cd -- "$3" || exit 126',
        "shift 3",
        'case $1 in -*) echo "cannot run $1: not found" >&2; exit 127;; esac',
        'exec "$@"',
    )
)
"""$1 is the directory of the program's pipes, $2 the number of processes, $3 the working directory, the rest the program."""


class Pipes(Streams):
    """The content of a program's `directory`: its variables, and both sides of its pipes.

    `ValueError` for variables that a shell cannot set.
    """

    def __init__(
        self, directory: Path, variables: Mapping[str, str], owner: tuple[int, int] | None, *, given: bool
    ) -> None:
        for name, value in variables.items():
            if not _NAME.fullmatch(name) or "\0" in value:
                raise ValueError(f"a container's programs cannot be given the variable {name!r}")
        self._open: set[int] = set()
        self.directory = directory
        self.given = None
        tree.make_passable(directory)
        try:
            text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
            file = directory / "variables"
            file.touch(mode=0o600)
            file.write_bytes(os.fsencode(text))
            file.chmod(0o400)
            if owner is not None:
                os.chown(file, *owner)
            self.status, self.gate = self._made("status", owner), self._made("gate", owner)
            paths = {name: self._made(name, owner) for name in ("out", "err")}
            self.out, self.err = (self._kept(os.open(directory / name, _READ)) for name in paths)
            self._held = tuple(paths.values())
            self.complaints = paths["err"]
            """Our own side of stderr, until `let_go`."""
            if given:
                self.given = self._made("in", owner)
        except BaseException:
            self.remove()
            raise

    def _made(self, name: str, owner: tuple[int, int] | None) -> int:
        return self._kept(fifo(self.directory / name, owner))

    def _kept(self, fd: int) -> int:
        self._open.add(fd)
        return fd

    def let_go(self) -> None:
        """Call once the program has opened its side: its output then ends when no process inside holds it any more."""
        self.close(*self._held)

    def written(self) -> bool:
        """Whether any process inside may still write output."""
        poll = select.poll()
        for fd in (self.out, self.err):
            poll.register(fd, 0)  # an end is always reported
        return len(poll.poll(0)) < 2

    def remove(self) -> None:
        self.close()
        tree.remove(self.directory)

    def close(self, *fds: int) -> None:
        for fd in fds or tuple(self._open):
            if fd in self._open:
                self._open.discard(fd)
                os.close(fd)


class ContainerProgram(SupervisedProgram):
    """`launch.argv` is an engine's `exec` in the foreground. `part`: the control group of its processes, owned by this object. None without parts.
    `processes`: the limit of the container's group, which also counts the engine's until the program has entered. None if another limit holds."""

    def __init__(
        self,
        launch: Launch,
        bounds: ProgramBounds,
        *,
        stdin: bytes | None,
        session: ContainerSession,
        pipes: Pipes,
        part: CgroupPart | None,
        processes: int | None,
    ) -> None:
        self._session = session
        self._processes = processes
        self._pipes = pipes
        self._part = part
        self._before_s = session.group.cpu_s() if session.group is not None else 0.0
        self._refused_before = session.refused_processes()
        self._began_inside = False
        self._entered = anyio.Event()
        self._complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._limit(entering=True)
        try:
            self._client = launch.spawn(nothing, nothing, self._complaints)
        except BaseException:
            self._limit()
            os.close(self._complaints)
            raise
        finally:
            os.close(nothing)
        self._pidfd = os.pidfd_open(self._client.pid)
        super().__init__(pipes, bounds, stdin)

    async def entered(self) -> None:
        """Return when it has started, or will never start."""
        await self._entered.wait()

    async def ended(self) -> None:
        try:
            await self._enter()
        except SandboxError:
            await self._session.kill()
            raise
        finally:
            self._limit()
            self._entered.set()
        await anyio.wait_readable(self._pidfd)
        self._client.wait()
        if self._crowded_out:
            os.write(self._pipes.complaints, _CROWDED_OUT)
        if self._client.returncode < 0:  # its exit code would not be known
            self._kill()

    async def _enter(self) -> None:
        async with anyio.create_task_group() as group:
            for fd in (self._pipes.status, self._pidfd):
                group.start_soon(self._first_of, fd, group.cancel_scope)
        with contextlib.suppress(BlockingIOError):
            self._began_inside = os.read(self._pipes.status, 64).startswith(b"started")
        if not self._began_inside:
            return
        self._pipes.let_go()
        if self._part is not None:
            self._session.settle_in(self._part)
        self._limit()
        os.write(self._pipes.gate, b"no\n" if self._end_wanted.is_set() else b"go\n")

    def _limit(self, *, entering: bool = False) -> None:
        if self._processes is not None:
            self._session.limit(self._processes, entering=entering)

    @property
    def _crowded_out(self) -> bool:
        """Whether programs that multiply without pause left the engine no process to start this one: their doing, and its result."""
        refused = self._session.refused_processes()
        return not self._began_inside and self._client.returncode > 0 and refused > self._refused_before

    @staticmethod
    async def _first_of(fd: int, scope: anyio.CancelScope) -> None:
        await anyio.wait_readable(fd)
        scope.cancel()

    async def _feed(self, data: bytes) -> None:
        """Write after it has opened its side: data written earlier is lost with the last descriptor."""
        await self._entered.wait()
        await super()._feed(data)

    async def strike(self) -> None:
        with anyio.move_on_after(_ENTER_S) as scope:  # a process that has not started cannot be ended
            await self._entered.wait()
        if self._part is None or scope.cancelled_caught:
            await self._session.kill()
        self._kill()

    def _kill(self) -> None:
        if self._part is not None:
            self._part.kill()

    async def settle(self) -> None:
        """Processes that do not die are killed with the whole session."""
        started_at = time.monotonic()
        while self._any():
            waited_s = time.monotonic() - started_at
            if waited_s > _DIE_S:
                raise SandboxError(f"processes {self.living()} of a sandbox do not die")
            if waited_s > _STUBBORN_S:
                await self._session.kill()
            self._kill()
            await anyio.sleep(_SOON_S)

    def _any(self) -> bool:
        return bool(self._part.pids()) if self._part is not None else False

    async def lives(self) -> bool:
        if self._part is not None:
            return self._any()
        # Processes cannot be attributed to programs: all are ended, or none. Output is read while any can still write.
        ending = not self._bounds.lasting or self._end_wanted.is_set()
        return self._session.alive and (ending or self._pipes.written())

    def exit_code(self) -> int:
        code = self._client.returncode
        if not self._session.alive and not self._session.killed:
            kind = SandboxLost if self._session.sure else SandboxError
            raise kind("the container of a sandbox was ended from outside")
        if self._began_inside and code >= 0:
            # Engines report a signal as 128 + its number. Only SIGKILL's counts as one: a program outside leaves no other trace of it.
            return -signal.SIGKILL if code == _KILLED else code
        if self._session.killed:  # programs have ended their own session
            return -signal.SIGKILL
        if self._crowded_out:
            return _NOT_RUN
        failure = f"{self._session.engine.settings.engine} did not start a program (exit code {code})"
        if code < 0:  # the client is outside: only something outside can end it
            raise SandboxLost(f"{failure}: its client was ended")
        raise SandboxError(f"{failure}: {self._complaint()}")

    def _complaint(self) -> str:
        os.lseek(self._complaints, 0, os.SEEK_SET)
        return error_text(os.read(self._complaints, 1 << 16))

    def living(self) -> list[int]:
        return self._part.pids() if self._part is not None else self._session.living()

    def used(self) -> float:
        if self._part is not None:
            with contextlib.suppress(OSError):  # removed: the program is over, and its time was counted
                return self._part.cpu_s()
            return 0.0
        return self._session.group.cpu_s() - self._before_s if self._session.group is not None else 0.0

    def release(self) -> None:
        if self._client.poll() is None:  # supervision failed
            self._client.kill()
            self._client.wait()
        os.close(self._pidfd)
        os.close(self._complaints)
        if self._part is not None:
            self._part.remove()
        self._pipes.remove()


def arguments(directory: str, processes: int, cwd: str, argv: Sequence[str]) -> list[str]:
    """The arguments of `SCRIPT`. `directory` is the name of the program's own."""
    return [f"{INSIDE}/{directory}", str(processes), cwd, *argv]
