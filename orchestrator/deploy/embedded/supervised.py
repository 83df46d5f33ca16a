"""The life of one supervised process: start, ready, death, pause, restart; until it is stopped or counts as failed.

Loop: waits for its dependencies to be ready (unblocked by them or by stop), then for its child's death (unblocked by the kernel) or by stop,
then for a pause. Every wait is bounded: ready checks and graces have limits. A ready process that does not answer any more is killed.
"""

import contextlib
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread

from orchestrator.deploy.embedded.disk_space import short
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.leftovers import PidRecord, kill_descendants, mark
from orchestrator.deploy.embedded.process_spec import (
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    RestartWhen,
    describe_exit,
)
from orchestrator.deploy.embedded.spawn import (
    kill_group,
    last_lines,
    reap,
    send_signal,
    spawn,
)
from orchestrator.runtime.inherited import SOCKETS
from orchestrator.runtime.log import get

log = get(__name__)

_READY_POLL_S = 0.05
_CHECKS_PER_HANG = 12
_MAX_POLL_INTERVAL_S = 5.0


class SupervisedProcess:
    """One process under the supervisor. `changed` is called after every change of its status."""

    def __init__(
        self,
        spec: ProcessSpec,
        layout: RunLayout,
        *,
        after: Sequence["SupervisedProcess"],
        changed: Callable[["SupervisedProcess"], None],
    ) -> None:
        self.spec = spec
        self.log = spec.log if spec.log is not None else layout.log(spec.name)
        self.ready = anyio.Event()
        self.at_rest = anyio.Event()
        self.dependents: list[SupervisedProcess] = []
        self._after = tuple(after)
        for dependency in after:
            dependency.dependents.append(self)
        self._layout = layout
        self._changed = changed
        self._stop = anyio.Event()
        self._hurry = anyio.Event()
        self._renew = anyio.Event()
        self._state = ProcessState.WAITING
        self._since = time.time()
        self._pid: int | None = None
        self._starts = 0
        self._last_exit: str | None = None
        self._detail: str | None = None
        self._remark: str | None = None  # what is unusual about its present start
        self._ready_at: float | None = None

    @property
    def status(self) -> ProcessStatus:
        return ProcessStatus(
            name=self.spec.name,
            state=self._state,
            pid=self._pid,
            restarts=max(0, self._starts - 1),
            since=self._since,
            last_exit=self._last_exit,
            detail=self._detail if self._detail is not None else self._remark,
            log=str(self.log),
        )

    def stop(self) -> None:
        """Requests a clean end, once every dependent has ended."""
        self._stop.set()

    def hurry(self) -> None:
        """Cuts a clean end short."""
        self._hurry.set()

    def renew(self) -> None:
        """Requests a clean end and a restart of a ready process, which does not count as a death."""
        if self._state is ProcessState.READY:
            self._renew.set()

    async def run(self) -> None:
        """The whole life. Ends in a final state: stopped, finished or failed."""
        self._turn_away()
        try:
            await self._live()
        finally:
            self._pid = None
            self.at_rest.set()  # first: its dependencies wait for it
            # OSError: a file system that became read-only; the record names a dead process.
            with contextlib.suppress(OSError):
                self._layout.pid(self.spec.name).unlink(missing_ok=True)
            self._changed(self)

    async def _live(self) -> None:
        await self._dependencies_ready()
        policy = self.spec.restart
        deaths: deque[float] = deque(maxlen=policy.limit)
        pauses = policy.pauses()
        while not self._stop.is_set():
            self._become(ProcessState.STARTING)
            try:
                started = time.monotonic()
                status, ready_for_s = await self._once()
            except ValueError as error:
                self._fail(str(error))
                return
            except OSError as error:  # a full disk, too many processes: not the program's fault
                self._detail = self._last_exit = f"it cannot be started: {error}"
                await self._pause(next(pauses))
                continue
            if self._stop.is_set():
                break
            if self._renew.is_set():
                self._renew = anyio.Event()
                continue
            finished = policy.when is RestartWhen.NEVER or (
                policy.when is RestartWhen.ON_FAILURE and status == 0
            )
            if finished and status == 0:
                self._become(ProcessState.FINISHED)
                return
            now = time.monotonic()
            disk_problem = short((self._layout.root, *self.spec.writes))
            if disk_problem is not None:
                log.error("disk.full", process=self.spec.name, died_by=self._detail, error=str(disk_problem))
                self._detail = f"{self._detail}; {disk_problem}"
            elif self._dependencies_ready_since(started):
                deaths.append(now)
            looping = len(deaths) == policy.limit and now - deaths[0] < policy.window_s
            if finished or looping:
                cause = "ended" if finished else f"died {policy.limit} times within {now - deaths[0]:.0f} s"
                self._fail(f"{self.spec.name} {cause}, the last time by {self._detail}")
                return
            if ready_for_s >= policy.settled_s:
                pauses = policy.pauses()
            await self._pause(next(pauses))
        self._become(ProcessState.STOPPED)

    async def _pause(self, pause_s: float) -> None:
        self._become(ProcessState.BACKOFF)
        with anyio.move_on_after(pause_s):
            await self._stop.wait()

    @property
    def ready_since(self) -> float | None:
        """Monotonic seconds; None while it is not ready."""
        return self._ready_at if self._state is ProcessState.READY else None

    def _dependencies_ready_since(self, began: float) -> bool:
        """Whether a process that started at `began` and died had all its dependencies; otherwise the death does not count against it."""
        found = [dependency.ready_since for dependency in self._after]
        return all(since is not None and since <= began for since in found)

    async def _dependencies_ready(self) -> None:
        """Returns when every dependency has been ready once, or at stop."""
        async with anyio.create_task_group() as waiting:

            async def give_up() -> None:
                await self._stop.wait()
                waiting.cancel_scope.cancel()

            waiting.start_soon(give_up)
            for dependency in self._after:
                await dependency.ready.wait()
            waiting.cancel_scope.cancel()

    async def _once(self) -> tuple[int, float]:
        """One start to one death. Returns the exit status (-1 if the start was prevented) and the seconds for which the process was
        ready. Raises ValueError if the program cannot be executed at all, OSError if this machine has no resources for it now."""
        try:
            if self.spec.before_start is not None:
                self._remark = await anyio.to_thread.run_sync(self.spec.before_start)
        except ValueError as error:
            self._detail = self._last_exit = str(error)
            return -1, 0.0
        child = self._spawn()
        self._ready_at = None
        try:
            async with anyio.create_task_group() as watch:
                watch.start_soon(self._await_ready, child)
                watch.start_soon(self._end_when_it_hangs, child)
                watch.start_soon(self._end_on_request, child)
                watch.start_soon(self._end_to_renew, child)
                status = await reap(child)
                watch.cancel_scope.cancel()
        except BaseException:  # a broken ready check must not leave an unsupervised child
            kill_group(child)
            child.wait()
            raise
        finally:
            self._turn_away()
        await anyio.to_thread.run_sync(kill_descendants, self._layout, self.spec.name)
        self._pid = None
        self._last_exit = describe_exit(status)
        if self._detail is None:
            self._detail = self._last_exit
        return status, time.monotonic() - self._ready_at if self._ready_at is not None else 0.0

    def _turn_away(self) -> None:
        for held in self.spec.sockets:
            held.turn_away()

    def _spawn(self) -> subprocess.Popen[bytes]:
        inherited = os.environ if self.spec.inherit_env else {}
        descriptors = [held.descriptor for held in self.spec.sockets]
        sockets = {SOCKETS: ",".join(map(str, descriptors))} if descriptors else {}
        child = spawn(
            self.spec.argv,
            log=self.log,
            env={**inherited, **self.spec.env, **sockets, **mark(self._layout, self.spec.name)},
            cwd=self.spec.cwd,
            user=self.spec.user,
            descriptors=descriptors,
        )
        record = PidRecord(process=ProcessId.of(child.pid), stop_signal=int(self.spec.stop_signal))
        try:
            record.write(self._layout.pid(self.spec.name))
        except OSError:  # without its record it could not be found again
            kill_group(child)
            child.wait()
            raise
        for held in self.spec.sockets:
            held.hand_over()
        self._starts += 1
        self._pid = child.pid
        self._detail = None
        self._changed(self)
        return child

    async def _await_ready(self, child: subprocess.Popen[bytes]) -> None:
        ready, limit_s = self.spec.ready, self.spec.ready_timeout_s
        try:
            with anyio.fail_after(limit_s):
                while ready is not None and not await ready():
                    await anyio.sleep(_READY_POLL_S)
        except TimeoutError:
            self._detail = f"not being ready within {limit_s:g} s"
            kill_group(child)
        except ValueError as error:
            self._detail = str(error)
            kill_group(child)
        else:
            self._ready_at = time.monotonic()
            self.ready.set()
            self._become(ProcessState.READY)

    async def _end_when_it_hangs(self, child: subprocess.Popen[bytes]) -> None:
        answers, hang_s = self.spec.answers, self.spec.hang_s
        if answers is None:
            return
        pause_s, silent_s = min(hang_s / _CHECKS_PER_HANG, _MAX_POLL_INTERVAL_S), 0.0
        while silent_s < hang_s:
            looked_at = time.monotonic()
            await anyio.sleep(pause_s)
            if self._state is not ProcessState.READY or await answers():
                silent_s = 0.0
            else:  # this process may have stood still itself, and then has not looked
                silent_s += min(time.monotonic() - looked_at, pause_s + _MAX_POLL_INTERVAL_S)
        self._detail = f"hanging: it did not answer for {silent_s:.0f} s"
        log.error(
            "process.hangs",
            process=self.spec.name,
            pid=child.pid,
            silent_s=round(silent_s),
            then="it is started again",
        )
        kill_group(child)

    async def _end_on_request(self, child: subprocess.Popen[bytes]) -> None:
        await self._stop.wait()
        for dependent in self.dependents:
            await dependent.at_rest.wait()
        self._become(ProcessState.STOPPING)
        send_signal(child, self.spec.stop_signal)
        with anyio.move_on_after(self.spec.grace_s):
            await self._hurry.wait()
        kill_group(child)

    async def _end_to_renew(self, child: subprocess.Popen[bytes]) -> None:
        await self._renew.wait()
        send_signal(child, self.spec.stop_signal)
        await anyio.sleep(self.spec.grace_s)
        kill_group(child)

    def _fail(self, reason: str) -> None:
        lines = last_lines(self.log)
        end = "".join(f"\n  {line}" for line in lines)
        self._detail = f"{reason}; the end of {self.log}:{end}" if lines else reason
        self._become(ProcessState.FAILED)

    def _become(self, state: ProcessState) -> None:
        self._state = state
        self._since = time.time()
        self._changed(self)
