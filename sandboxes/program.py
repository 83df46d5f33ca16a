"""One running program: its output, its limits, and its certain end.

Life of a `Program`: spawned by its constructor (in the event-loop thread, because the kernel's parent-death
signal belongs to the thread that forked), supervised by one `run()` task of the sandbox's task group, over when
`run()` returns. `run()` is shielded: cancelling never leaves a process behind, since only death ends it and the
wall-time limit makes sure that death comes.

| waits for | unblocked by |
|---|---|
| both output pumps | end of file: the last process that holds the pipe is dead |
| the watch | its next look (every 0.25 s), or the deadline |
| `wait()` | `run()` ending |

Subclasses say how the tree is killed (`strike`) and when it is dead for sure (`settle`).
"""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio
import anyio.abc

from sandboxes import procfs
from sandboxes.base import ExecResult, KilledBy, Limits, SandboxError
from sandboxes.cgroups import Cgroup
from sandboxes.looks import SHARE, Looks

LOOK_S = 0.25
"""Seconds between two looks at what a program uses. Shorter programs are looked at at their end (looks.py)."""
_FLOOD = 16
_SIGXCPU_EXIT, _SIGXFSZ_EXIT, _KILLED_EXIT = 128 + 24, 128 + 25, 128 + 9


@dataclass(frozen=True, slots=True)
class Launch:
    """What to spawn on the host: `pass_fds` are inherited and closed here afterwards."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    pass_fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """What this program may use, and where that can be read."""

    limits: Limits
    timeout_s: float
    looks: Looks
    cgroup: Cgroup | None


class _Capture:
    """The kept head of one output stream."""

    def __init__(self, limit: int) -> None:
        self.kept = bytearray()
        self.total = 0
        self.read = 0
        self._limit = limit

    def add(self, data: bytes) -> None:
        self.kept += data[: self._limit - len(self.kept)]
        self.total += len(data)

    def unread(self) -> bytes:
        data = bytes(self.kept[self.read :])
        self.read = len(self.kept)
        return data

    @property
    def flooded(self) -> bool:
        return self.total > _FLOOD * self._limit


class Program(ABC):
    """A program that runs under supervision; implements `base.Process`."""

    def __init__(self, launch: Launch, bounds: Bounds, stdin: bytes | None) -> None:
        self._bounds = bounds
        self._stdin = stdin
        self._captures = (_Capture(bounds.limits.output_bytes), _Capture(bounds.limits.output_bytes))
        self._cpu_before = bounds.cgroup.cpu_s() if bounds.cgroup else 0.0
        self._oom_before = bounds.cgroup.oom_kills() if bounds.cgroup else 0
        self._cpu_seen = 0.0
        self._killed_by = KilledBy.NONE
        self._result: ExecResult | None = None
        self._error: BaseException | None = None
        self._done = anyio.Event()
        self._news = anyio.Event()
        self._end_wanted = anyio.Event()
        self._began = self.last_output = time.monotonic()
        try:
            self._popen = subprocess.Popen(
                launch.argv,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=launch.env,
                cwd=launch.cwd,
                pass_fds=launch.pass_fds,
                start_new_session=True,  # the terminal's Ctrl-C is for us, not for the sandbox
                bufsize=0,
            )
        finally:
            for fd in launch.pass_fds:
                os.close(fd)
        self._pidfd = os.pidfd_open(self._popen.pid)

    last_output: float

    @abstractmethod
    async def strike(self) -> None:
        """Send SIGKILL to the whole tree. Called once."""

    @abstractmethod
    async def settle(self) -> None:
        """Return when every process is dead, the first one having been waited for; `SandboxError` if not."""

    @abstractmethod
    def exit_code(self) -> int:
        """The shell's exit code of the program; `SandboxError` if the platform never got to run it."""

    @abstractmethod
    def living(self) -> list[int]:
        """The processes of the tree, as far as they can be seen, for accounting without control groups."""

    async def run(self) -> None:
        """Supervise until everything is dead. Never raises: `wait` does."""
        with anyio.CancelScope(shield=True):
            try:
                await self._supervise()
            except Exception as error:  # noqa: BLE001 - kept, and raised by every wait()
                self._error = _first(error)
                if self._popen.returncode is None:
                    self._popen.kill()
                    self._reap()
            finally:
                self._close_fds()
                self._done.set()
                self._news.set()

    async def _supervise(self) -> None:
        out, err = self._popen.stdout, self._popen.stderr
        assert out is not None and err is not None
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            group.start_soon(self._strike_when_wanted)
            self.begin(group)
            if self._stdin is not None:
                group.start_soon(self._feed, self._stdin)
            async with anyio.create_task_group() as pumps:
                pumps.start_soon(self._pump, out.fileno(), self._captures[0])
                pumps.start_soon(self._pump, err.fileno(), self._captures[1])
                await anyio.wait_readable(self._pidfd)
                self._reap()
                await self.settle()
                # With every process dead the pipes are at their end, unless somebody outside was handed one.
                pumps.cancel_scope.deadline = anyio.current_time() + 2.0
            group.cancel_scope.cancel()
        await self._conclude()

    def _reap(self) -> None:
        """Collect the first process, which has ended: its exit status, and the CPU time of what it waited for."""
        _, status, used = os.wait4(self._popen.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        self._cpu_seen = max(self._cpu_seen, used.ru_utime + used.ru_stime)

    def begin(self, group: anyio.abc.TaskGroup) -> None:  # noqa: B027 - optional
        """Start what a subclass needs beside the pumps. Cancelled when everything is dead."""

    async def _pump(self, fd: int, capture: _Capture) -> None:
        os.set_blocking(fd, False)
        while True:
            await anyio.wait_readable(fd)
            data = os.read(fd, 1 << 16)
            if not data:
                return
            capture.add(data)
            self.last_output = time.monotonic()
            self._news.set()
            self._news = anyio.Event()
            if capture.flooded:
                self._end(KilledBy.OUTPUT)

    async def _feed(self, data: bytes) -> None:
        assert self._popen.stdin is not None
        fd = self._popen.stdin.fileno()
        os.set_blocking(fd, False)
        view = memoryview(data)
        try:
            while view:
                await anyio.wait_writable(fd)
                view = view[os.write(fd, view[: 1 << 16]) :]
        except BrokenPipeError:  # a program need not read its input
            pass
        finally:
            self._popen.stdin.close()

    async def _watch(self) -> None:
        deadline = self._began + self._bounds.timeout_s
        next_scan = 0.0
        while True:
            await anyio.sleep(max(0.0, min(LOOK_S, deadline - time.monotonic())))
            now = time.monotonic()
            if now >= deadline:
                self._end(KilledBy.TIMEOUT)
                return
            reason = self._overuse()
            if reason is KilledBy.NONE and now >= next_scan:
                if await self._bounds.looks.full():
                    reason = KilledBy.DISK
                next_scan = time.monotonic() + SHARE * (time.monotonic() - now)
            if reason is not KilledBy.NONE:
                self._end(reason)
                return

    def _overuse(self) -> KilledBy:
        limits, cgroup = self._bounds.limits, self._bounds.cgroup
        if self.cpu_s() > limits.cpu_s:
            return KilledBy.CPU
        if cgroup is not None:
            return KilledBy.MEMORY if cgroup.oom_kills() > self._oom_before else KilledBy.NONE
        _, resident = procfs.use(self.living())
        return KilledBy.MEMORY if resident > limits.memory_mb << 20 else KilledBy.NONE

    def _end(self, reason: KilledBy) -> None:
        """Begin to end the program; the first reason given stays."""
        if self._killed_by is KilledBy.NONE and not self._done.is_set():
            self._killed_by = reason
            self._end_wanted.set()

    async def _strike_when_wanted(self) -> None:
        await self._end_wanted.wait()
        await self.strike()

    async def _conclude(self) -> None:
        wall_s = time.monotonic() - self._began
        cpu_s = self.cpu_s()
        code = _KILLED_EXIT
        cgroup = self._bounds.cgroup
        # Before the exit code: the kernel may have ended the platform's part of the tree together with the rest.
        if self._killed_by is KilledBy.NONE and cgroup is not None and cgroup.oom_kills() > self._oom_before:
            self._killed_by = KilledBy.MEMORY
        if self._killed_by is KilledBy.NONE:
            code = self.exit_code()
            self._killed_by = await self._last_look(code, wall_s, cpu_s)
            code = code if self._killed_by is KilledBy.NONE else _KILLED_EXIT
        out, err = self._captures
        truncated = out.total > len(out.kept) or err.total > len(err.kept)
        self._result = ExecResult(
            code, bytes(out.kept), bytes(err.kept), truncated, self._killed_by, wall_s, cpu_s
        )

    async def _last_look(self, code: int, wall_s: float, cpu_s: float) -> KilledBy:
        """The limit that the kernel enforced, or that was passed since the watch last looked."""
        if code == _SIGXCPU_EXIT or cpu_s > self._bounds.limits.cpu_s:
            return KilledBy.CPU
        if code == _SIGXFSZ_EXIT or await self._bounds.looks.full_after(wall_s):
            return KilledBy.DISK
        return KilledBy.NONE

    def cpu_s(self) -> float:
        if self._done.is_set() and self._result is not None:
            return self._result.cpu_s
        if self._bounds.cgroup is not None:
            return self._bounds.cgroup.cpu_s() - self._cpu_before
        self._cpu_seen = max(self._cpu_seen, procfs.use(self.living())[0])
        return self._cpu_seen

    async def read(self) -> tuple[bytes, bytes]:
        out, err = self._captures
        while True:
            news = out.unread(), err.unread()
            if any(news) or self._done.is_set():
                return news
            await self._news.wait()

    async def wait(self) -> ExecResult:
        await self._done.wait()
        if self._error is not None:
            raise SandboxError(str(self._error)) from self._error
        assert self._result is not None
        return self._result

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        if not self._done.is_set():
            self._end(reason)
        return await self.wait()

    def _close_fds(self) -> None:
        os.close(self._pidfd)
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if stream is not None:
                stream.close()


def _first(error: Exception) -> Exception:
    """The error itself out of the groups that task groups wrap it in."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
