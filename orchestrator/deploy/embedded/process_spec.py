"""The supervisor's input about a process, and its reports about it."""

import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from orchestrator.deploy.embedded.held_socket import HeldSocket
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.runtime.backoff import backoff


class RestartWhen(StrEnum):
    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    """Exit status 0 means that the process has done its work."""
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a dead process is restarted, and when it counts as failed.

    Each death in a row is followed by a pause of `backoff(first_delay_s, max_delay_s)`. A process that was ready for `settled_s` starts again
    at the first pause. `limit` deaths within `window_s` mark it as failed. With the defaults that takes about 13 s of immediate deaths.
    A death does not count if a process in its `after` was dead or lost, or while the disk of the run
    directory, or another that the process writes to, is full.
    """

    when: RestartWhen = RestartWhen.ALWAYS
    limit: int = 8
    window_s: float = 60.0
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0
    settled_s: float = 5.0

    def pauses(self) -> Iterator[float]:
        """Seconds to wait after each death in a row."""
        return backoff(self.first_delay_s, self.max_delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process to be kept alive.

    `env` is added to the supervisor's environment (or is all of it: `inherit_env=False`). `ready` is called every 50 ms until it returns True. If
    it raises ValueError, the process is killed for that reason, which counts as a death. Without it a process is ready once it has started.
    `answers` is called every few seconds from then on. A process that does not answer for `hang_s` hangs: it is killed, which counts as a death.
    `before_start` is called, in a thread, before every start, and returns what is unusual about it, for the status; a ValueError counts as a
    death, an OSError does not. `after` names the processes that must be ready before the first start. Their later deaths change nothing here.
    Stopping goes in reverse order: `stop_signal`, then SIGKILL to the process group after `grace_s`. `ends_before` names others that are only
    stopped once this one has ended, in any order of their starts. `log` is `logs/<name>.log` unless given. `writes`: directories outside the run
    directory whose disks must have space for the process to live. `stale_after_full`: it survives a full disk, but does not recover from it. It
    is restarted once there is space again, which does not count either. `sockets` are inherited by each life: their ports stay ours in between.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    inherit_env: bool = True
    cwd: Path | None = None
    user: str | None = None
    after: tuple[str, ...] = ()
    ends_before: tuple[str, ...] = ()
    ready: Callable[[], Awaitable[bool]] | None = None
    answers: Callable[[], Awaitable[bool]] | None = None
    hang_s: float = 60.0
    before_start: Callable[[], str | None] | None = None
    ready_timeout_s: float = 60.0
    restart: RestartPolicy = RestartPolicy()
    grace_s: float = 10.0
    stop_signal: signal.Signals = signal.SIGTERM
    log: Path | None = None
    writes: tuple[Path, ...] = ()
    stale_after_full: bool = False
    sockets: tuple[HeldSocket, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{self.name!r} cannot name a process: use letters, digits, - and _")
        if not self.argv:
            raise ValueError(f"process {self.name} has no program to run")


class ProcessState(StrEnum):
    WAITING = "waiting"
    """for the processes in its `after`"""
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"
    """dead, to be restarted after a pause"""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    """ended by itself, and not to be restarted"""
    FAILED = "failed"
    """it kept dying, or cannot be started"""


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process in the status file. Times are Unix seconds. `detail` is the reason of its failure or last death."""

    name: str
    state: ProcessState
    pid: int | None
    restarts: int
    since: float
    last_exit: str | None
    detail: str | None
    log: str


class SupervisorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status file. A dead supervisor may have written it: check `supervisor.alive`."""

    supervisor: ProcessId
    written: float
    processes: list[ProcessStatus]

    def ready(self, for_s: float = 0.0) -> frozenset[str]:
        """Names of the processes that have been ready for `for_s`; of a dead supervisor none."""
        return frozenset(
            process.name
            for process in self.processes
            if self.supervisor.alive
            and process.state is ProcessState.READY
            and time.time() - process.since >= for_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvent:
    """Signals that a supervised process has changed its state. Produced by the supervisor, consumed by the display."""

    name: str
    state: ProcessState
    pid: int | None
    detail: str | None


def describe_exit(status: int) -> str:
    """`exit 1`, `killed by SIGKILL`"""
    if status >= 0:
        return f"exit {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
