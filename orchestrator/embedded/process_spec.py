"""What the supervisor is told about a process, and what it tells about it."""

import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from orchestrator.embedded.identity import ProcessId


class RestartWhen(StrEnum):
    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    """Exit status 0 means that the process has done its work."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a dead process is started again, and when it is given up.

    The n-th death in a row is followed by a pause of `first_delay_s · 2^(n−1)`, at most `max_delay_s`, times a random factor between
    0.5 and 1.5; a process that was ready for `settled_s` starts again at the first delay. `limit` deaths within `window_s` mark it as failed:
    with the defaults that takes about 13 s of doing nothing but dying. The death of a process that found a process it comes after dead, or
    lost it, does not count, nor does any while the disk of the run directory, or another that the process writes to, is full.
    """

    when: RestartWhen = RestartWhen.ALWAYS
    limit: int = 8
    window_s: float = 60.0
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0
    settled_s: float = 5.0

    def delay_s(self, deaths_in_a_row: int, jitter: float) -> float:
        """`jitter` is in [0, 1). Seconds to wait after the given death (1 for the first)."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (deaths_in_a_row - 1)) * (0.5 + jitter)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to be kept alive.

    `env` is added to the supervisor's environment (or is all of it: `inherit_env=False`). `ready` is asked every 50 ms until it
    answers True; a ValueError that it raises is the reason why the process is killed and counts as a death. Without it a process is
    ready when it has been started. `before_start` is called, in a thread, before every start; a ValueError counts as a death. `after` names
    the processes that must be ready before the first start; later deaths of theirs change nothing here. Stopping goes the other way
    round: `stop_signal`, then SIGKILL to the process group after `grace_s`. `ends_before` names others that are only stopped once this one
    has ended, in whatever order they start. `log` is `logs/<name>.log` unless given. `writes`: directories outside the run directory
    without room on whose disks it cannot live. `stale_after_full`: it lives through a full disk, but does not get over it: it is started
    anew, which does not count either, once there is room again.
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
    before_start: Callable[[], None] | None = None
    ready_timeout_s: float = 60.0
    restart: RestartPolicy = RestartPolicy()
    grace_s: float = 10.0
    stop_signal: signal.Signals = signal.SIGTERM
    log: Path | None = None
    writes: tuple[Path, ...] = ()
    stale_after_full: bool = False

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{self.name!r} cannot name a process: use letters, digits, - and _")
        if not self.argv:
            raise ValueError(f"process {self.name} has no program to run")


class ProcessState(StrEnum):
    WAITING = "waiting"
    """for the processes that it comes after"""
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"
    """dead, to be started again after a pause"""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    """ended by itself, and not to be started again"""
    FAILED = "failed"
    """given up: it kept dying, or cannot be started"""


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process in the status file. Times are Unix seconds. `detail` says why it failed or died last."""

    name: str
    state: ProcessState
    pid: int | None
    restarts: int
    since: float
    last_exit: str | None
    detail: str | None
    log: str


class SupervisorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status file. It may be the last word of a dead supervisor: ask `supervisor.alive`."""

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


@dataclass(frozen=True, slots=True)
class ProcessEvent:
    """Signals that a supervised process has changed its state. Produced by the supervisor, consumed by whoever shows it."""

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
