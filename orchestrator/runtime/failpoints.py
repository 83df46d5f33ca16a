"""Failpoints: named places at which a death, an error, a delay or a repetition must lose no data.

A *boundary* is one externally visible act: a commit, a publish, an acknowledgement, an fsync, a rename, a step of a weight sync. It has two
points: NAME.before (the act has not happened yet) and NAME.after (it has happened, and its caller does not know). `BOUNDARIES` holds them all.

`$PENSTOCK_FAILPOINTS` names a directory. A file NAME.before or NAME.after in it arms that point, a file NAME the whole act; its text is
the action:

| action | what the process that reaches the point does | file |
|---|---|---|
| `exit` | kills itself with SIGKILL: no handler runs, nothing is flushed | NAME.before, NAME.after |
| `raise` | raises the error of a real failure of the act | NAME.before, NAME.after |
| `delay SECONDS` | waits | NAME.before, NAME.after |
| `duplicate` | performs the act twice | NAME |

One line is one arrival. The first process to arrive takes the first line, notes `POINT ACTION PID PROCESS` in the file `hits` of the directory, and
performs the action (PROCESS is its name under a supervisor, - elsewhere). So a running stack is armed without a restart. Without the variable a
boundary costs one check of `directory`. A file NAME…@PROCESS arms only one process of the stack.
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import anyio

T = TypeVar("T")

directory: Path | None = (
    Path(os.environ["PENSTOCK_FAILPOINTS"]) if os.environ.get("PENSTOCK_FAILPOINTS") else None
)
"""The directory in which points are armed; None: none is armed."""
HITS: Final = "hits"
PROCESS: Final = "PENSTOCK_PROCESS"  # the environment variable with the name of a supervised process


class BoundaryKind(Enum):
    """The kind of an act, with the error that a real failure of it raises here."""

    # A transient error: pool.transact retries.
    COMMIT = (errno.ECONNRESET, "the connection to Postgres was lost")
    BUS = (errno.ECONNRESET, "the connection to NATS was lost")
    SERVER = (errno.ECONNRESET, "the connection to the rollout server was lost")
    DISK = (errno.ENOSPC, "no space left on device")

    def error(self) -> OSError:
        number, text = self.value
        return ConnectionResetError(number, text) if number == errno.ECONNRESET else OSError(number, text)


@dataclass(frozen=True, slots=True)
class Boundary:
    """`who`: the processes that reach it (`up` is the supervisor, `client` any publisher of tasks or command)."""

    kind: BoundaryKind
    who: tuple[str, ...]
    what: str


_ORCHESTRATOR, _GATEWAY, _TRAINER = ("orchestrator",), ("gateway",), ("trainer",)
_WORKERS = ("runner", "verifier")

BOUNDARIES: Final[Mapping[str, Boundary]] = MappingProxyType(
    {
        # --- commits (pool.transact) ---
        "run.create": Boundary(BoundaryKind.COMMIT, ("up", "orchestrator"), "a run's row is made, or found"),
        "person.commit": Boundary(
            BoundaryKind.COMMIT,
            ("client",),
            "a command changes something: the run ends, a dead letter is dropped",
        ),
        "prune.detach": Boundary(
            BoundaryKind.COMMIT, ("client",), "a pruned run's partition is detached, or half so"
        ),
        "prune.drop": Boundary(
            BoundaryKind.COMMIT, ("client",), "a detached partition of a pruned run is dropped"
        ),
        "login.commit": Boundary(
            BoundaryKind.COMMIT,
            ("client",),
            "the login that people's statements run as is made, or gets its password",
        ),
        "schema.commit": Boundary(
            BoundaryKind.COMMIT, ("up", "client"), "the database is brought to this code's schema"
        ),
        "intake.commit": Boundary(BoundaryKind.COMMIT, _ORCHESTRATOR, "tasks are accepted or rejected"),
        "blobs.commit": Boundary(BoundaryKind.COMMIT, _ORCHESTRATOR, "parts of large tasks are stored"),
        "blobs.read": Boundary(
            BoundaryKind.COMMIT, ("orchestrator", *_WORKERS), "parts of a large task are read into the cache"
        ),
        "artifacts.named": Boundary(
            BoundaryKind.COMMIT, ("runner",), "which blobs of an attempt's large files the data pool lacks"
        ),
        "artifacts.commit": Boundary(
            BoundaryKind.COMMIT, ("runner",), "parts of an attempt's large files are stored"
        ),
        "dispatcher.commit": Boundary(
            BoundaryKind.COMMIT, _ORCHESTRATOR, "groups get a place in the queue, rollouts are assigned"
        ),
        "breaker.commit": Boundary(
            BoundaryKind.COMMIT, _ORCHESTRATOR, "the circuit breaker is counted as open"
        ),
        "steps.commit": Boundary(BoundaryKind.COMMIT, _ORCHESTRATOR, "steps are stored"),
        "steps.complete": Boundary(
            BoundaryKind.COMMIT,
            _ORCHESTRATOR,
            "rollouts whose last step came after their result are completed",
        ),
        "results.commit": Boundary(BoundaryKind.COMMIT, _ORCHESTRATOR, "results of attempts are stored"),
        "verdicts.commit": Boundary(
            BoundaryKind.COMMIT, _ORCHESTRATOR, "verdicts are stored, groups concluded"
        ),
        "refused.commit": Boundary(
            BoundaryKind.COMMIT,
            _ORCHESTRATOR,
            "a message that cannot be used is kept as a dead letter; one that may end its process is noted",
        ),
        "dead_letters.commit": Boundary(
            BoundaryKind.COMMIT, _ORCHESTRATOR, "dead letters of others are kept in the data pool"
        ),
        "relay.take": Boundary(BoundaryKind.COMMIT, _ORCHESTRATOR, "outbox rows are taken for a while"),
        "relay.commit": Boundary(
            BoundaryKind.COMMIT,
            _ORCHESTRATOR,
            "outbox rows that were published, or never can be, are deleted",
        ),
        "reaper.commit": Boundary(
            BoundaryKind.COMMIT,
            _ORCHESTRATOR,
            "leases that ran out are taken back, or get a full time to live",
        ),
        "reminder.commit": Boundary(
            BoundaryKind.COMMIT, _ORCHESTRATOR, "assignments that no worker took are sent again"
        ),
        "run_end.commit": Boundary(
            BoundaryKind.COMMIT, _ORCHESTRATOR, "the run ends, open groups are filtered"
        ),
        "rebuild.commit": Boundary(
            BoundaryKind.COMMIT, _ORCHESTRATOR, "what a lost stream held is owed again"
        ),
        "orchestrator.read": Boundary(BoundaryKind.COMMIT, _ORCHESTRATOR, "a transaction that only reads"),
        "session.open": Boundary(
            BoundaryKind.COMMIT, _GATEWAY, "a session is opened, older ones of the rollout are closed"
        ),
        "session.end": Boundary(BoundaryKind.COMMIT, _GATEWAY, "a session is sealed or aborted"),
        "session.progress": Boundary(
            BoundaryKind.COMMIT, _GATEWAY, "marks and exhaustion of a session are kept"
        ),
        "server.lease.taken": Boundary(BoundaryKind.COMMIT, _GATEWAY, "a rollout server is claimed"),
        "server.lease.renewed": Boundary(
            BoundaryKind.COMMIT, _GATEWAY, "the lease of a rollout server is renewed"
        ),
        "server.lease.ended": Boundary(BoundaryKind.COMMIT, _GATEWAY, "a rollout server is let go"),
        "server.row": Boundary(
            BoundaryKind.COMMIT, _GATEWAY, "the owner says what a rollout server is doing"
        ),
        "gateway.refused": Boundary(
            BoundaryKind.COMMIT, _GATEWAY, "a step that no stream takes is kept as a dead letter"
        ),
        "gateway.read": Boundary(BoundaryKind.COMMIT, _GATEWAY, "a transaction that only reads"),
        "lease.taken": Boundary(BoundaryKind.COMMIT, _WORKERS, "an attempt or a verification is leased"),
        "lease.renewed": Boundary(BoundaryKind.COMMIT, _WORKERS, "every lease of a worker is renewed"),
        "lease.lost": Boundary(BoundaryKind.COMMIT, _WORKERS, "a lease that was lost is counted"),
        "lease.ended": Boundary(BoundaryKind.COMMIT, _WORKERS, "a stopping worker gives its leases back"),
        "worker.count": Boundary(
            BoundaryKind.COMMIT, ("runner",), "something that happened in an attempt is counted"
        ),
        "worker.read": Boundary(BoundaryKind.COMMIT, _WORKERS, "a transaction that only reads"),
        "trainer.first": Boundary(BoundaryKind.COMMIT, _TRAINER, "policy version 0 is published"),
        "trainer.claim": Boundary(BoundaryKind.COMMIT, _TRAINER, "a batch takes groups, or is closed"),
        "trainer.commit": Boundary(
            BoundaryKind.COMMIT, _TRAINER, "a batch is trained, its policy version published"
        ),
        "trainer.quarantine": Boundary(
            BoundaryKind.COMMIT, _TRAINER, "a batch that cannot be trained is given up"
        ),
        "trainer.prune": Boundary(
            BoundaryKind.COMMIT, _TRAINER, "checkpoints that are not needed are taken out of use"
        ),
        "trainer.read": Boundary(BoundaryKind.COMMIT, _TRAINER, "a transaction that only reads"),
        "heartbeat.commit": Boundary(
            BoundaryKind.COMMIT,
            ("orchestrator", "gateway", "runner", "verifier", "trainer"),
            "a process says that it lives, and what its loops do",
        ),
        # --- the bus (bus.nats, bus.pull): by the kind of message ---
        "publish.tasks": Boundary(BoundaryKind.BUS, ("client",), "a task is submitted"),
        "publish.blobs": Boundary(BoundaryKind.BUS, ("client",), "a part of a large task is sent"),
        "publish.work.rollout": Boundary(BoundaryKind.BUS, _ORCHESTRATOR, "a rollout is assigned"),
        "publish.work.verify": Boundary(BoundaryKind.BUS, _ORCHESTRATOR, "a verification is assigned"),
        "publish.steps": Boundary(BoundaryKind.BUS, _GATEWAY, "a step leaves the journal"),
        "publish.results.rollout": Boundary(BoundaryKind.BUS, ("runner",), "a result leaves the journal"),
        "publish.results.verdict": Boundary(BoundaryKind.BUS, ("verifier",), "a verdict leaves the journal"),
        "publish.policy": Boundary(BoundaryKind.BUS, _ORCHESTRATOR, "a policy version is announced"),
        "publish.dead": Boundary(BoundaryKind.BUS, ("orchestrator", *_WORKERS), "a dead letter is published"),
        "notify": Boundary(
            BoundaryKind.BUS, _ORCHESTRATOR, "the waiting client learns that a task was accepted or rejected"
        ),
        "fetch": Boundary(
            BoundaryKind.BUS, ("orchestrator", "gateway", *_WORKERS), "a consumer asks for messages"
        ),
        "ack.tasks": Boundary(BoundaryKind.BUS, _ORCHESTRATOR, "accepted tasks leave the stream"),
        "ack.blobs": Boundary(
            BoundaryKind.BUS, _ORCHESTRATOR, "stored parts of large tasks leave the stream"
        ),
        "ack.work.rollout": Boundary(BoundaryKind.BUS, ("runner",), "a leased assignment leaves the stream"),
        "ack.work.verify": Boundary(
            BoundaryKind.BUS, ("verifier",), "a leased verification leaves the stream"
        ),
        "ack.steps": Boundary(BoundaryKind.BUS, _ORCHESTRATOR, "stored steps leave the stream"),
        "ack.results.rollout": Boundary(BoundaryKind.BUS, _ORCHESTRATOR, "stored results leave the stream"),
        "ack.results.verdict": Boundary(BoundaryKind.BUS, _ORCHESTRATOR, "stored verdicts leave the stream"),
        "ack.policy": Boundary(BoundaryKind.BUS, _GATEWAY, "the gateway has received a policy version"),
        "ack.dead": Boundary(BoundaryKind.BUS, _ORCHESTRATOR, "kept dead letters are done with"),
        "nak": Boundary(
            BoundaryKind.BUS,
            ("orchestrator", *_WORKERS),
            "what is not done yet is handed back, or kept a little longer",
        ),
        "term": Boundary(
            BoundaryKind.BUS,
            ("orchestrator", *_WORKERS),
            "a message that is a dead letter now leaves its stream",
        ),
        # --- files ---
        "journal.segment": Boundary(
            BoundaryKind.DISK, ("gateway", *_WORKERS), "fsync of a new journal segment"
        ),
        "journal.named": Boundary(
            BoundaryKind.DISK, ("gateway", *_WORKERS), "fsync of the journal's directory"
        ),
        "journal.sync": Boundary(
            BoundaryKind.DISK, ("gateway", *_WORKERS), "fdatasync of what the journal keeps"
        ),
        "checkpoint.link": Boundary(
            BoundaryKind.DISK, _TRAINER, "a file that the version before has too gets a name in a checkpoint"
        ),
        "checkpoint.sync": Boundary(BoundaryKind.DISK, _TRAINER, "fsync of one file of a checkpoint"),
        "checkpoint.rename": Boundary(BoundaryKind.DISK, _TRAINER, "a whole checkpoint gets its name"),
        "checkpoint.named": Boundary(BoundaryKind.DISK, _TRAINER, "fsync of the directory of checkpoints"),
        "checkpoint.discarded": Boundary(
            BoundaryKind.DISK, _TRAINER, "a checkpoint that is not needed loses its name"
        ),
        "gateway.url": Boundary(BoundaryKind.DISK, _GATEWAY, "the gateway says where it listens"),
        "file.sync": Boundary(BoundaryKind.DISK, ("up",), "fsync of a small file of the supervisor"),
        "file.rename": Boundary(
            BoundaryKind.DISK, ("up",), "a small file of the supervisor replaces its predecessor"
        ),
        "log.rename": Boundary(BoundaryKind.DISK, ("up",), "a log that has grown too long is put aside"),
        "cluster.rename": Boundary(BoundaryKind.DISK, ("up",), "a new database cluster gets its name"),
        "export.sync": Boundary(BoundaryKind.DISK, ("client",), "fsync of a finished file of an export"),
        "export.rename": Boundary(
            BoundaryKind.DISK, ("client",), "a finished file of an export gets its name"
        ),
        # --- weight syncs (gateway.servers.weight_sync, through gateway.servers.client) ---
        "server.pause": Boundary(BoundaryKind.SERVER, _GATEWAY, "a rollout server stops generating"),
        "server.abort": Boundary(
            BoundaryKind.SERVER, _GATEWAY, "completions under way end with what they have"
        ),
        "server.update": Boundary(BoundaryKind.SERVER, _GATEWAY, "a rollout server exchanges its weights"),
        "server.continue": Boundary(BoundaryKind.SERVER, _GATEWAY, "a rollout server goes on"),
        "server.canary": Boundary(BoundaryKind.SERVER, _GATEWAY, "the canary is requested"),
        "weights.load": Boundary(BoundaryKind.DISK, ("rollout-server",), "new weights are read and checked"),
    }
)


async def boundary(name: str, act: Callable[[], Awaitable[T]]) -> T:
    """Perform `act` with its failpoints; its value is returned."""
    if directory is None:
        return await act()
    await reach(f"{name}.before")
    if doubled(name):
        await act()
    result = await act()
    await reach(f"{name}.after")
    return result


def boundary_sync(name: str, act: Callable[[], T]) -> T:
    """As `boundary`, for code that cannot await: in a thread, or before an event loop runs."""
    if directory is None:
        return act()
    _obey_sync(f"{name}.before")
    if doubled(name):
        act()
    result = act()
    _obey_sync(f"{name}.after")
    return result


async def reach(point: str) -> None:
    """One point alone, for an act that is not a single call. Call it only if `directory` is set."""
    await anyio.sleep(_obey(point))


def doubled(name: str) -> bool:
    """Whether the act must be performed twice this time. Call it only if `directory` is set."""
    action = _taken(name)
    if action not in (None, "duplicate"):
        raise ValueError(
            f"the failpoint {name} cannot do {action!r}: arm {name}.before or {name}.after with it"
        )
    return action is not None


def _obey_sync(point: str) -> None:
    time.sleep(_obey(point))


def _obey(point: str) -> float:
    """Perform the armed action of the point; returns the seconds to wait."""
    action = _taken(point)
    match (action or "delay 0").split():
        case ["exit"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["raise"]:
            raise BOUNDARIES[point.rpartition(".")[0]].kind.error()
        case ["delay", seconds]:
            return float(seconds)
    raise ValueError(f"the failpoint {point} cannot do {action!r}: it knows exit, raise and delay SECONDS")


def _taken(file: str) -> str | None:
    """The next action that is armed for this process alone, else for any; None if none is."""
    process = os.environ.get(PROCESS)
    action = _taken_from(f"{file}@{process}") if process else None
    return action or _taken_from(file)


def _taken_from(file: str) -> str | None:
    """Take the next action from `file` of the directory, so that no other process gets it; None if it is not armed."""
    assert directory is not None
    armed, claimed = directory / file, directory / f".{file}.{os.getpid()}.{threading.get_ident()}"
    try:
        if not armed.stat().st_size:  # a writer has not finished it
            return None
        armed.rename(claimed)
    except FileNotFoundError:
        return None
    action, _, rest = claimed.read_text().strip().partition("\n")
    with (directory / HITS).open("a") as hits:
        hits.write(f"{file} {action} {os.getpid()} {os.environ.get(PROCESS, '-')}\n")
    if rest:
        claimed.write_text(rest)
        claimed.rename(armed)
    else:
        claimed.unlink()
    return action
