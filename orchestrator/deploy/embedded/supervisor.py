"""Keeps the processes of one run directory alive.

    async with Supervisor(layout, on_event=show, obey_signals=True) as supervisor:
        supervisor.add(*specs)
        await supervisor.ready()
        await supervisor.until_stopped()      # SIGINT, SIGTERM or request_stop()

It starts processes in the order of dependencies, restarts dead ones, and stops in reverse order. It reports everything through `on_event` and the
status file. One supervisor per run directory: the kernel holds the lock, so a dead supervisor holds none. A killed supervisor takes its
children with it. Survivors (a stopped process, a grandchild) are ended by the next supervisor before it starts any process.

It does not judge a process that lives but hangs: leases and watchdogs do.
"""

import graphlib
import os
import signal
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from orchestrator.deploy.embedded.disk_space import ENOUGH_BYTES, NEEDED_BYTES, short
from orchestrator.deploy.embedded.file_lock import try_lock
from orchestrator.deploy.embedded.identity import ProcessId, write_atomically
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.leftovers import end_leftovers
from orchestrator.deploy.embedded.process_spec import (
    ProcessEvent,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    SupervisorStatus,
)
from orchestrator.deploy.embedded.spawn import MAX_LOG_BYTES, shorten_log
from orchestrator.deploy.embedded.supervised import SupervisedProcess
from orchestrator.runtime.ending import ending_signals
from orchestrator.runtime.log import get
from orchestrator.runtime.run_option import FILE, run_option

log = get(__name__)

POLL_INTERVAL_S = 1.0
LOCK_INTERVAL_S = 0.1


class Supervisor:
    """`on_event` is called in the event loop after every change of state and must not block. With `obey_signals` (main thread only) SIGINT
    and SIGTERM request a clean stop, from the first moment on. A second one cuts it short: SIGKILL to all that still live. No log grows far beyond
    `log_bytes`; one earlier file of each is kept."""

    def __init__(
        self,
        layout: RunLayout,
        *,
        on_event: Callable[[ProcessEvent], None] | None = None,
        obey_signals: bool = False,
        leftover_grace_s: float = 5.0,
        log_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        self._layout = layout
        self._on_event = on_event
        self._signals = obey_signals
        self._leftover_grace_s = leftover_grace_s
        self._log_bytes = log_bytes
        self._processes: dict[str, SupervisedProcess] = {}
        self._reported: dict[str, ProcessStatus] = {}
        self._change = anyio.Event()
        self._stopping = anyio.Event()
        self._me = ProcessId.mine()
        self._lock: int | None = None
        self._full = False  # the disk of the run directory, at the last check
        self._unwritten: str | None = None  # why the status file is older than the status
        self._tasks: TaskGroup | None = None
        self.leftovers = 0
        """Number of processes of an earlier, killed supervisor that were ended at the start."""

    async def __aenter__(self) -> Self:
        """Raises ValueError if another supervisor holds this run directory."""
        self._layout.create()
        self._lock = try_lock(self._layout.lock)
        if self._lock is None:
            holder = ProcessId.read(self._layout.lock)
            holder_name = f" (pid {holder.pid})" if holder is not None else ""
            run = run_option(self._layout.root.parent / FILE)
            raise ValueError(
                f"another supervisor{holder_name} runs in {self._layout.root}; stop it with: penstock down{run}"
            )
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, msgspec.json.encode(self._me), 0)
            self.leftovers = await end_leftovers(self._layout, grace_s=self._leftover_grace_s)
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
            self._tasks.start_soon(self._look_after_disk)
            if self._signals:
                await self._tasks.start(self._obey_signals)
        except BaseException:
            os.close(self._lock)
            raise
        self._write_status()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stops everything, in reverse order, for any reason of leaving."""
        assert self._tasks is not None and self._lock is not None
        self.request_stop()
        try:
            with anyio.CancelScope(shield=True):
                await self._all_at_rest()
            self._tasks.cancel_scope.cancel()  # only the signal handler still runs
            return await self._tasks.__aexit__(kind, error, trace)
        finally:
            os.close(self._lock)

    def add(self, *specs: ProcessSpec) -> None:
        """Starts supervising. Returns at once; see `ready`. May be called again with more. Raises ValueError for a duplicate name, an
        unknown dependency, or a cycle of dependencies."""
        assert self._tasks is not None, "the supervisor is not running"
        new = {spec.name: spec for spec in specs}
        if len(new) < len(specs) or new.keys() & self._processes.keys():
            raise ValueError(
                "two supervised processes have the same name: " + ", ".join(s.name for s in specs)
            )
        for spec in specs:
            for name in (*spec.after, *spec.ends_before):
                if name not in new and name not in self._processes:
                    relation = "comes after" if name in spec.after else "ends before"
                    raise ValueError(f"process {spec.name} {relation} {name}, which is not supervised")
        try:
            order = list(graphlib.TopologicalSorter({s.name: s.after for s in specs}).static_order())
        except graphlib.CycleError as error:
            raise ValueError("these processes wait for each other: " + " → ".join(error.args[1])) from error
        for name in order:
            if name in new:
                dependencies = [self._processes[dependency] for dependency in new[name].after]
                process = SupervisedProcess(
                    new[name], self._layout, after=dependencies, changed=self._on_change
                )
                self._processes[name] = process
                self._tasks.start_soon(_shielded, process)
                if self._stopping.is_set():
                    process.stop()
        for spec in specs:
            for name in spec.ends_before:
                self._processes[name].dependents.append(self._processes[spec.name])

    def status(self, name: str) -> ProcessStatus:
        return self._processes[name].status

    async def change(self) -> None:
        """Returns after the next change of any status."""
        await self._change.wait()

    async def ready(self, *names: str) -> None:
        """Returns when these processes (none named: all) have been ready or have finished. Raises ValueError, with the end of its log, if
        one failed before that, or if the supervisor was stopped in between."""
        while True:
            for process in self._processes.values():
                if process.status.state is ProcessState.FAILED:
                    raise ValueError(process.status.detail or f"{process.status.name} failed")
            if self._stopping.is_set():
                raise ValueError("stopped while starting")
            readiness = (
                process.ready.is_set() or process.status.state is ProcessState.FINISHED
                for name, process in self._processes.items()
                if not names or name in names
            )
            if all(readiness):
                return
            await self._change.wait()

    def request_stop(self) -> None:
        """Requests the end of every process, dependents first. Returns at once."""
        self._stopping.set()
        for process in self._processes.values():
            process.stop()
        self._tell_change()

    async def until_stopped(
        self, interchangeable: Collection[str] = (), *, expendable: Collection[str] = ()
    ) -> None:
        """Waits for a signal or `request_stop()`, then until every process has ended. Raises ValueError, with the end of its log, if a
        process fails in between. Of the `interchangeable` ones, one that remains is enough; of the `expendable` ones, none is needed."""
        while not self._stopping.is_set():
            if (failure := self._given_up(interchangeable, expendable)) is not None:
                raise ValueError(failure)
            await self._change.wait()
        await self._all_at_rest()

    def _given_up(self, interchangeable: Collection[str], expendable: Collection[str]) -> str | None:
        failed = {
            name: process.status.detail or f"{name} failed"
            for name, process in self._processes.items()
            if process.status.state is ProcessState.FAILED and name not in expendable
        }
        remaining = set(interchangeable) - failed.keys()
        return next(
            (reason for name, reason in failed.items() if name not in interchangeable or not remaining), None
        )

    async def _all_at_rest(self) -> None:
        for process in list(self._processes.values()):
            await process.at_rest.wait()

    async def _obey_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*ending_signals()) as signals:
            task_status.started()
            async for _ in signals:
                if self._stopping.is_set():
                    for process in self._processes.values():
                        process.hurry()
                self.request_stop()

    def _on_change(self, process: SupervisedProcess) -> None:
        status = process.status
        last = self._reported.get(status.name)
        self._reported[status.name] = status
        self._write_status()
        if self._on_event is not None and (last is None or last.state != status.state):
            event = ProcessEvent(name=status.name, state=status.state, pid=status.pid, detail=status.detail)
            try:
                self._on_event(event)
            except Exception as error:  # noqa: BLE001  # an observer ends no process
                log.error("event.not_shown", process=event.name, state=event.state, error=repr(error))
        self._tell_change()

    def _tell_change(self) -> None:
        self._change.set()
        self._change = anyio.Event()

    def _write_status(self) -> None:
        status = SupervisorStatus(
            supervisor=self._me,
            written=time.time(),
            processes=[process.status for process in self._processes.values()],
        )
        try:
            write_atomically(self._layout.status, msgspec.json.encode(status))
        except OSError as error:  # a full disk must not end running processes
            if self._unwritten is None:
                log.error("status.unwritten", file=str(self._layout.status), error=str(error))
            self._unwritten = str(error)
        else:
            self._unwritten = None

    async def _look_after_disk(self) -> None:
        """Keep the logs bounded, write the status as soon as the disk has space again, and restart processes that do not recover from a full disk."""
        while True:
            await anyio.sleep(POLL_INTERVAL_S)
            for name in list(self._processes):
                await anyio.to_thread.run_sync(shorten_log, self._layout.log(name), self._log_bytes)
            if self._unwritten is not None:
                self._write_status()
            found = short([self._layout.root], ENOUGH_BYTES if self._full else NEEDED_BYTES)
            if found is not None and not self._full:
                log.error(
                    "disk.full",
                    error=str(found),
                    consequence="what dies waits, and is started until there is room",
                )
            elif found is None and self._full:
                log.info("disk.freed", directory=str(self._layout.root))
                for process in self._processes.values():
                    if process.spec.stale_after_full:
                        process.renew()
            self._full = found is not None


async def _shielded(process: SupervisedProcess) -> None:
    """A cancelled supervisor still stops its processes in order: `stop` ends them, never cancellation."""
    with anyio.CancelScope(shield=True):
        await process.run()


def read_status(layout: RunLayout) -> SupervisorStatus | None:
    """The last status written for a run directory, or None. Whether its supervisor lives: `status.supervisor.alive`."""
    try:
        return msgspec.json.decode(layout.status.read_bytes(), type=SupervisorStatus)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


async def _ended(supervisor: ProcessId, timeout_s: float) -> bool:
    """Ends a supervisor; False if it is dead. Raises ValueError if it does not end in time."""
    if not supervisor.send(signal.SIGTERM):
        return False
    if not await supervisor.gone(timeout_s):
        raise ValueError(f"the supervisor (pid {supervisor.pid}) did not end within {timeout_s:g} s")
    return True


async def stop_running(layout: RunLayout, *, timeout_s: float = 120.0) -> bool:
    """Ends the supervisor of a run directory or, if it is dead already, its leftovers. False if nothing had to be ended. Raises
    ValueError if it does not end in time."""
    layout.create()
    status = read_status(layout)
    if status is not None and await _ended(status.supervisor, timeout_s):
        return True
    started, give_up_at = False, anyio.current_time() + timeout_s
    while (lock := try_lock(layout.lock)) is None:
        # One that starts: it has the lock, and writes its status later. It may end in the middle, so its leftovers are looked for.
        starting = ProcessId.read(layout.lock)
        started |= starting is not None and await _ended(starting, timeout_s)
        if anyio.current_time() > give_up_at:
            raise ValueError(f"another process holds {layout.lock} for more than {timeout_s:g} s")
        await anyio.sleep(LOCK_INTERVAL_S)
    try:
        return await end_leftovers(layout) > 0 or started
    finally:
        os.close(lock)
