"""A program in a bubblewrap sandbox, started inside its session by the joiner (join.py).

Its processes are identified by its part of the sandbox's control group or, without control groups, by its warden. Its exit status comes from its
gate, a process outside. It cannot be forged inside, and a program cannot disguise its own failure as the platform's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import anyio

from sandboxes import join, procfs
from sandboxes.base import SandboxError
from sandboxes.cgroups import CgroupPart
from sandboxes.join import JoinedProgram
from sandboxes.program import ProgramBounds, Streams, SupervisedProgram
from sandboxes.ready import readable
from sandboxes.session import Session

_DIE_S, _STUBBORN_S = 10.0, 2.0
_AGAIN_S = 0.002
_INTRODUCED_S = 1.0


class BubblewrapProgram(SupervisedProgram):
    """`part`: the control group of its processes, owned by this object. None without control groups; then `entry.warden` must be true."""

    def __init__(
        self,
        entry: JoinedProgram,
        bounds: ProgramBounds,
        *,
        stdin: bytes | None,
        session: Session,
        part: CgroupPart | None,
    ) -> None:
        self._session = session
        self._part = part
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._status: int | None = None
        self._gone = False
        self._warded = entry.warden
        self._failed = ""
        self._introduced = anyio.Event()
        streams = Streams(given=stdin is not None)
        part_fds: list[int] = []
        try:
            part_fds = part.open_fds() if part else []
            self._line = join.join(entry, session.pidfd, streams.theirs, part_fds)
        except BaseException:
            streams.close()
            raise
        finally:
            for fd in part_fds:
                os.close(fd)
        streams.close(*streams.theirs)
        super().__init__(streams, bounds, stdin)

    async def ended(self) -> None:
        while await self._hear():
            if self._status is not None or self._gone:
                return
        if not self._failed and not self._session.ending:
            self._failed = "the process that puts programs into a sandbox has ended before its program"

    async def _hear(self) -> bool:
        """Read the next report. False at the end."""
        await anyio.wait_readable(self._line.fileno())
        report = join.next_report(self._line)
        if report is None:
            self._gone = True
            self._introduced.set()
            return False
        message, fds = report
        if "pid" in message:
            self._pid = message["pid"]
            (self._pidfd,) = fds
            self._introduced.set()
        self._failed = message.get("failed", self._failed)
        self._status = message.get("status", self._status)
        self._gone = self._gone or "gone" in message
        self._cpu_seen = max(self._cpu_seen, message.get("cpu", 0.0))
        return True

    async def strike(self) -> None:
        with anyio.move_on_after(_INTRODUCED_S):  # a process that has not started cannot be ended
            await self._introduced.wait()
        self._kill()

    def _kill(self) -> None:
        if self._part is not None:
            self._part.kill()
            if self._pidfd is not None and self._status is None:  # it may not have joined its part yet
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        elif not self._gone:  # the warden exits as soon as all its children are dead
            procfs.halt(self.living)
            if self._pidfd is not None:
                with contextlib.suppress(ProcessLookupError):  # a program may have stopped it
                    signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    async def settle(self) -> None:
        """Processes that do not die are killed with the whole session."""
        started_at = time.monotonic()
        while await self.lives():
            waited_s = time.monotonic() - started_at
            if waited_s > _DIE_S:
                raise SandboxError(f"processes {self.living()} of a sandbox do not die")
            if waited_s > _STUBBORN_S:
                self._session.kill()
            self._kill()
            await anyio.sleep(_AGAIN_S)

    async def lives(self) -> bool:
        if self._part is not None:
            return bool(self._part.pids())
        while not self._gone and readable(self._line.fileno()):
            await self._hear()
        return not self._gone and self._session.alive

    def exit_code(self) -> int:
        if self._session.ending and not self._session.killed:  # no program inside reaches process 1
            raise self._session.ended_by_others()
        if self._failed and not self._session.ending:
            raise SandboxError(f"a program cannot be led into its sandbox: {self._failed}")
        if self._status is None:  # programs have ended their own session, or their own warden
            return -signal.SIGKILL
        return os.waitstatus_to_exitcode(self._status)

    def living(self) -> list[int]:
        if self._part is not None:
            return self._part.pids()
        if self._pid is None or self._gone:
            return []
        return procfs.tree(self._pid)[1 if self._warded else 0 :]

    def used(self) -> float:
        if self._part is not None:
            # Removed: the program is over, and its time was counted.
            with contextlib.suppress(FileNotFoundError):
                return self._part.cpu_s()
            return 0.0
        # The warden first: what it collects in the meantime counts once.
        warden = None if self._pid is None or self._gone else procfs.stat(self._pid)
        return (0.0 if warden is None else warden.waited_cpu_s) + procfs.use(self.living())[0]

    def release(self) -> None:
        self._line.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        if self._part is not None:
            self._part.remove()
