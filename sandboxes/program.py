"""One running program: its output, its limits, the end of its foreground, and the guaranteed end of all its processes.

Life of a `SupervisedProgram`: its constructor starts it (in the event-loop thread, because the kernel's parent-death signal belongs to the
thread that forked), and one `run()` task of the sandbox's task group supervises it. It has two parts:

1. The *foreground*: the requested process. When it ends, or a limit ends it, the result is available and `wait()` returns.
2. The *background*: processes that it left running, if any. They are still subject to the same limits, except the wall clock, until they are
   dead. Their output is read and dropped, so that they neither block on a full pipe nor die of a closed one. `run()` returns only then.

If a limit or its caller ends a program, its background ends too. The same holds for every program if `ProgramBounds.lasting` is
false. `run()` is shielded: a cancellation never leaves a process behind.

| waits for | unblocked by |
|---|---|
| the end of the foreground | its death; the wall-time limit guarantees it |
| the watch | its next look (every 0.25 s) |
| the timer | the deadline |
| `wait()` | the result |
| `over()` | `run()` ending |

Subclasses define how a tree is ended (`strike`), when it is certainly dead (`settle`), and whether any process of it lives (`lives`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.abc

from sandboxes import procfs
from sandboxes.base import ExecResult, KilledBy, Limits, MachineFault, SandboxError, same_kind
from sandboxes.cgroups import Cgroup
from sandboxes.disk_usage import POLL_INTERVAL_S, SHARE, DiskUsage
from sandboxes.ending import first_error
from sandboxes.machine import is_fault

_SOON_S = 0.01
_FLOOD = 16
_SIGNALLED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBounds:
    """The limits of this program, and where its use can be read. `lasting`: its background lives on. `together`: the processes of
    all programs of the sandbox, for accounting without control groups."""

    limits: Limits
    timeout_s: float
    disk: DiskUsage
    cgroup: Cgroup | None
    lasting: bool = True
    together: Callable[[], list[int]] = list


class Streams:
    """Both ends of a program's stdin, stdout and stderr: `theirs` are for the program, and are closed here once it has them."""

    def __init__(self, *, given: bool) -> None:
        self._open: set[int] = set()
        self.given: int | None = None
        try:
            if given:
                stdin, self.given = self._pipe()
            else:
                stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                self._open.add(stdin)
            self.out, stdout = self._pipe()
            self.err, stderr = self._pipe()
        except OSError:
            self.close()
            raise
        self.theirs = (stdin, stdout, stderr)
        for fd in (self.out, self.err, *(() if self.given is None else (self.given,))):
            os.set_blocking(fd, False)

    def _pipe(self) -> tuple[int, int]:
        pipe = os.pipe2(os.O_CLOEXEC)
        self._open.update(pipe)
        return pipe

    def close(self, *fds: int) -> None:
        """Close the named descriptors, or all. Closing one twice has no effect."""
        for fd in fds or tuple(self._open):
            if fd in self._open:
                self._open.discard(fd)
                os.close(fd)


class _Capture:
    """The kept beginning of one output stream."""

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


class SupervisedProgram(ABC):
    """A program that runs under supervision; implements `base.Process`."""

    last_output: float

    def __init__(self, streams: Streams, bounds: ProgramBounds, stdin: bytes | None) -> None:
        self._bounds = bounds
        self._streams = streams
        self._stdin = stdin
        self._captures = (_Capture(bounds.limits.output_bytes), _Capture(bounds.limits.output_bytes))
        self._oom_before = bounds.cgroup.oom_kills() if bounds.cgroup else 0
        self._cpu_seen = 0.0
        self._killed_by = KilledBy.NONE
        self._result: ExecResult | None = None
        self._error: BaseException | None = None
        self._done = anyio.Event()
        self._over = anyio.Event()
        self._news = anyio.Event()
        self._end_wanted = anyio.Event()
        self._hurried = anyio.Event()
        self._pause_s = POLL_INTERVAL_S
        self._began = self.last_output = time.monotonic()

    @abstractmethod
    async def ended(self) -> None:
        """Return when the foreground process is dead and collected."""

    @abstractmethod
    async def strike(self) -> None:
        """Send SIGKILL to the whole tree, including the background. May be called again."""

    @abstractmethod
    async def settle(self) -> None:
        """Return when every process of the tree is dead, after `strike`; `SandboxError` if they do not die."""

    @abstractmethod
    async def lives(self) -> bool:
        """Whether any process of the tree lives. Called once the foreground is dead."""

    @abstractmethod
    def exit_code(self) -> int:
        """The exit code of the program; −n: signal n ended it. `SandboxError` if the platform failed to run it."""

    @abstractmethod
    def living(self) -> list[int]:
        """The processes of the tree, as far as they can be seen."""

    async def survey(self) -> None:  # noqa: B027 - optional
        """Find the living processes, where that takes time."""

    @abstractmethod
    def used(self) -> float:
        """CPU seconds of the tree so far."""

    @abstractmethod
    def release(self) -> None:
        """Close its resources. Called once, last; with living processes only after a failure."""

    async def run(self) -> None:
        """Supervise until everything is dead. Never raises: `wait` does."""
        with anyio.CancelScope(shield=True):
            try:
                await self._supervise()
            except Exception as error:  # noqa: BLE001 - kept, and raised by every wait()
                self._error = first_error(error)
                if is_fault(self._error):
                    self._error = MachineFault(str(self._error))
                with contextlib.suppress(SandboxError, OSError):
                    await self.strike()
            finally:
                self.release()
                self._streams.close()
                self._done.set()
                self._over.set()
                self._tell()

    async def _supervise(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            group.start_soon(self._keep_time)
            group.start_soon(self._strike_when_wanted)
            if self._stdin is not None:
                group.start_soon(self._feed, self._stdin)
            for fd, capture in self._outputs():
                group.start_soon(self._pump, fd, capture)
            await self.ended()
            if self._end_wanted.is_set() or (not self._bounds.lasting and await self.lives()):
                await self.strike()
                await self.settle()
            for fd, capture in self._outputs():
                self._catch_up(fd, capture)
            await self._conclude()
            self._done.set()
            self._tell()
            await self._outlive()
            group.cancel_scope.cancel()

    async def _outlive(self) -> None:
        """Wait until no process of it lives."""
        while self._end_wanted.is_set() or await self.lives():
            with anyio.move_on_after(self._pause_s):
                await (self._end_wanted if self._hurried.is_set() else self._hurried).wait()
            if self._end_wanted.is_set():
                await self.strike()
                await self.settle()
                return

    def _outputs(self) -> tuple[tuple[int, _Capture], tuple[int, _Capture]]:
        return (self._streams.out, self._captures[0]), (self._streams.err, self._captures[1])

    async def _pump(self, fd: int, capture: _Capture) -> None:
        while True:
            await anyio.wait_readable(fd)
            with contextlib.suppress(BlockingIOError):
                data = os.read(fd, 1 << 16)
                if not data:
                    return
                self._take(data, capture)

    def _take(self, data: bytes, capture: _Capture) -> None:
        if self._done.is_set():  # output of the background: it counts, and is dropped
            capture.total += len(data)
        else:
            capture.add(data)
            self.last_output = time.monotonic()
            self._tell()
        if capture.flooded:
            self.end(KilledBy.OUTPUT)

    def _catch_up(self, fd: int, capture: _Capture) -> None:
        """Read the bytes that are in the pipe now, and no more: the background may write without end."""
        (remaining,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
        while remaining > 0:
            data = os.read(fd, remaining)
            if not data:
                return
            remaining -= len(data)
            self._take(data, capture)

    async def _feed(self, data: bytes) -> None:
        fd = self._streams.given
        assert fd is not None
        view = memoryview(data)
        try:
            while view and not self._done.is_set():
                await anyio.wait_writable(fd)
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(fd, view[: 1 << 16]) :]
        except BrokenPipeError:  # a program need not read its input
            pass
        finally:
            self._streams.close(fd)

    async def _watch(self) -> None:
        next_scan = 0.0
        while True:
            await anyio.sleep(POLL_INTERVAL_S)
            now = time.monotonic()
            reason = self._overuse()
            if reason is KilledBy.NONE and now >= next_scan:
                # Memory again, because memory files were measured with the disk.
                reason = KilledBy.DISK if await self._bounds.disk.full_if_due() else self._overuse()
                next_scan = time.monotonic() + SHARE * (time.monotonic() - now)
            if reason is not KilledBy.NONE:
                self.end(reason)
                return

    async def _keep_time(self) -> None:
        """Enforce the deadline. Separate from the watch, whose measurements may take long."""
        await anyio.sleep(max(0.0, self._began + self._bounds.timeout_s - time.monotonic()))
        if not self._done.is_set():
            self.end(KilledBy.TIMEOUT)

    def _overuse(self) -> KilledBy:
        limits, cgroup = self._bounds.limits, self._bounds.cgroup
        if self._cpu_now() > limits.cpu_s:
            return KilledBy.CPU
        if cgroup is not None:
            return KilledBy.MEMORY if cgroup.oom_kills() > self._oom_before else KilledBy.NONE
        pids, most = self._bounds.together(), limits.memory_mb << 20
        _, resident = procfs.use(pids)
        in_files = self._bounds.disk.in_memory()
        if 0 <= most - resident < in_files:  # what is mapped of memory files is resident, too
            in_files -= procfs.mapped_memory_files(pids)
        return KilledBy.MEMORY if resident + max(0, in_files) > most else KilledBy.NONE

    def end(self, reason: KilledBy) -> None:
        """Start to end the living processes of the program. The first reason given while the foreground runs is kept."""
        self._hurried.set()
        if self._killed_by is KilledBy.NONE and not self._done.is_set():
            self._killed_by = reason
        self._end_wanted.set()

    async def _strike_when_wanted(self) -> None:
        await self._end_wanted.wait()
        await self.strike()

    async def _conclude(self) -> None:
        wall_s = time.monotonic() - self._began
        cpu_s = self._cpu_now()
        code: int = -signal.SIGKILL
        ended_by: int = signal.SIGKILL
        cgroup = self._bounds.cgroup
        # Before the exit code: the kernel may have ended the platform's part of the tree together with the rest.
        if self._killed_by is KilledBy.NONE and cgroup is not None and cgroup.oom_kills() > self._oom_before:
            self._killed_by = KilledBy.MEMORY
        if self._killed_by is KilledBy.NONE:
            code = self.exit_code()
            ended_by = max(0, -code)
            self._killed_by = await self._last_look(code, wall_s, cpu_s)
            code = code if self._killed_by is KilledBy.NONE else -signal.SIGKILL
        if self._killed_by is not KilledBy.NONE:  # its background ends with it
            self._end_wanted.set()
            if await self.lives():
                await self.strike()
                await self.settle()
        out, err = self._captures
        truncated = out.total > len(out.kept) or err.total > len(err.kept)
        self._result = ExecResult(
            exit_code=_SIGNALLED - code if code < 0 else code,
            signal=ended_by,
            stdout=bytes(out.kept),
            stderr=bytes(err.kept),
            truncated=truncated,
            killed_by=self._killed_by,
            wall_s=wall_s,
            cpu_s=cpu_s,
        )

    async def _last_look(self, code: int, wall_s: float, cpu_s: float) -> KilledBy:
        """The limit that the kernel enforced, or that was exceeded since the last measurement of the watch."""
        if code == -signal.SIGXCPU or cpu_s > self._bounds.limits.cpu_s:
            return KilledBy.CPU
        if code == -signal.SIGXFSZ or await self._bounds.disk.full_after(wall_s):
            return KilledBy.DISK
        # A shell's own exit code after a command that reached the limit, unless the shell chose this number itself.
        if code == _SIGNALLED + signal.SIGXFSZ and await self._bounds.disk.at_limit():
            return KilledBy.DISK
        return KilledBy.NONE

    def cpu_s(self) -> float:
        return self._cpu_now() if self._result is None else self._result.cpu_s

    def _cpu_now(self) -> float:
        """CPU seconds of the whole tree, including the background after the result is available."""
        self._cpu_seen = max(self._cpu_seen, self.used())
        return self._cpu_seen

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def read(self) -> tuple[bytes, bytes]:
        out, err = self._captures
        while True:
            output = out.unread(), err.unread()
            if any(output) or self._done.is_set():
                return output
            await self._news.wait()

    async def wait(self) -> ExecResult:
        await self._done.wait()
        if self._result is not None:
            return self._result
        assert self._error is not None
        raise same_kind(self._error) from self._error

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        if not self._done.is_set():
            self.end(reason)
        return await self.wait()

    def hurry(self) -> None:
        """Check at shorter intervals whether any process of it lives, because a caller waits."""
        self._pause_s = _SOON_S
        self._hurried.set()

    async def over(self) -> None:
        """Return when no process of it lives."""
        await self._over.wait()
