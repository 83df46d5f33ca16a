"""Failpoints: the places where a death, an error, a delay or a repetition must lose nothing, by name.

A *boundary* is one act that the outside can see: a commit, a publish, an acknowledgement, an fsync, a rename, a step of a weight sync. It has two
points: NAME.before (nothing has happened yet) and NAME.after (it has happened, and who asked for it does not know). `BOUNDARIES` holds them all.

`$PENSTOCK_FAILPOINTS` names a directory. A file NAME.before or NAME.after in it arms that point, a file NAME the whole act; its text is
the action:

| action | what the process that gets there does | file |
|---|---|---|
| `exit` | kills itself with SIGKILL: no handler runs, nothing is flushed | NAME.before, NAME.after |
| `raise` | raises what a real failure of the act would | NAME.before, NAME.after |
| `delay SECONDS` | waits | NAME.before, NAME.after |
| `duplicate` | performs the act twice | NAME |

One line is one arrival: whoever gets there first takes the first line, notes `POINT ACTION PID PROCESS` in the file `hits` beside it, and
obeys (PROCESS is its name under a supervisor, - elsewhere). So a running stack is armed without a restart. Without the variable a boundary
costs one look at `directory`. A file NAME…@PROCESS arms for one process of the stack alone.
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
"""Where points are armed; None: nothing ever is."""
HITS: Final = "hits"
PROCESS: Final = "PENSTOCK_PROCESS"  # the environment variable with the name of a supervised process


class Kind(Enum):
    """What sort of act it is, with the error that a real failure of it raises here."""

    COMMIT = (
        errno.ECONNRESET,
        "the connection to Postgres was lost",
    )  # a passing error: pool.transact repeats
    BUS = (errno.ECONNRESET, "the connection to NATS was lost")
    SERVER = (errno.ECONNRESET, "the connection to the rollout server was lost")
    DISK = (errno.ENOSPC, "no space left on device")

    def error(self) -> OSError:
        number, text = self.value
        return ConnectionResetError(number, text) if number == errno.ECONNRESET else OSError(number, text)


@dataclass(frozen=True, slots=True)
class Boundary:
    """`who`: the processes that get there (`up` is the supervisor, `client` whoever publishes tasks or gives a command)."""

    kind: Kind
    who: tuple[str, ...]
    what: str


_ORCHESTRATOR, _GATEWAY, _TRAINER = ("orchestrator",), ("gateway",), ("trainer",)
_WORKERS = ("runner", "verifier")

BOUNDARIES: Final[Mapping[str, Boundary]] = MappingProxyType(
    {
        # --- commits (pool.transact) ---
        "run.create": Boundary(Kind.COMMIT, ("up", "orchestrator"), "a run's row is made, or found"),
        "person.commit": Boundary(
            Kind.COMMIT, ("client",), "a command changes something: the run ends, a dead letter is dropped"
        ),
        "prune.detach": Boundary(
            Kind.COMMIT, ("client",), "a pruned run's partition is no partition any more, or half so"
        ),
        "prune.drop": Boundary(Kind.COMMIT, ("client",), "a detached partition of a pruned run is dropped"),
        "login.commit": Boundary(
            Kind.COMMIT,
            ("client",),
            "the login that people's statements run as is made, or gets its password",
        ),
        "schema.commit": Boundary(
            Kind.COMMIT, ("up", "client"), "the database is brought to this code's schema"
        ),
        "intake.commit": Boundary(Kind.COMMIT, _ORCHESTRATOR, "tasks are accepted or rejected"),
        "dispatcher.commit": Boundary(
            Kind.COMMIT, _ORCHESTRATOR, "groups get a place in the queue, rollouts are assigned"
        ),
        "breaker.commit": Boundary(Kind.COMMIT, _ORCHESTRATOR, "the circuit breaker is counted as open"),
        "steps.commit": Boundary(Kind.COMMIT, _ORCHESTRATOR, "steps are stored"),
        "steps.complete": Boundary(
            Kind.COMMIT, _ORCHESTRATOR, "rollouts whose last step came after their result are completed"
        ),
        "results.commit": Boundary(Kind.COMMIT, _ORCHESTRATOR, "results of attempts are stored"),
        "verdicts.commit": Boundary(Kind.COMMIT, _ORCHESTRATOR, "verdicts are stored, groups concluded"),
        "refused.commit": Boundary(
            Kind.COMMIT, _ORCHESTRATOR, "a message that cannot be used is kept as a dead letter"
        ),
        "letters.commit": Boundary(
            Kind.COMMIT, _ORCHESTRATOR, "dead letters of others are kept in the data pool"
        ),
        "relay.take": Boundary(Kind.COMMIT, _ORCHESTRATOR, "outbox rows are taken for a while"),
        "relay.commit": Boundary(Kind.COMMIT, _ORCHESTRATOR, "published outbox rows are deleted"),
        "reaper.commit": Boundary(
            Kind.COMMIT, _ORCHESTRATOR, "leases that ran out are taken back, or get a full time to live"
        ),
        "reminder.commit": Boundary(
            Kind.COMMIT, _ORCHESTRATOR, "assignments that nobody took are owed again"
        ),
        "ender.commit": Boundary(Kind.COMMIT, _ORCHESTRATOR, "the run ends, open groups are filtered"),
        "rebuild.commit": Boundary(Kind.COMMIT, _ORCHESTRATOR, "what a lost stream held is owed again"),
        "orchestrator.read": Boundary(Kind.COMMIT, _ORCHESTRATOR, "a transaction that only reads"),
        "session.open": Boundary(
            Kind.COMMIT, _GATEWAY, "a session is opened, older ones of the rollout are closed"
        ),
        "session.end": Boundary(Kind.COMMIT, _GATEWAY, "a session is sealed or aborted"),
        "session.progress": Boundary(Kind.COMMIT, _GATEWAY, "marks and exhaustion of a session are kept"),
        "server.lease.taken": Boundary(Kind.COMMIT, _GATEWAY, "a rollout server is claimed"),
        "server.lease.renewed": Boundary(Kind.COMMIT, _GATEWAY, "the lease of a rollout server is renewed"),
        "server.lease.ended": Boundary(Kind.COMMIT, _GATEWAY, "a rollout server is let go"),
        "server.row": Boundary(Kind.COMMIT, _GATEWAY, "the owner says what a rollout server is doing"),
        "gateway.refused": Boundary(
            Kind.COMMIT, _GATEWAY, "a step that no stream takes is kept as a dead letter"
        ),
        "gateway.read": Boundary(Kind.COMMIT, _GATEWAY, "a transaction that only reads"),
        "lease.taken": Boundary(Kind.COMMIT, _WORKERS, "an attempt or a verification is leased"),
        "lease.renewed": Boundary(Kind.COMMIT, _WORKERS, "every lease of a worker is renewed"),
        "lease.lost": Boundary(Kind.COMMIT, _WORKERS, "a lease that was lost is counted"),
        "lease.ended": Boundary(Kind.COMMIT, _WORKERS, "a stopping worker gives its leases back"),
        "worker.count": Boundary(
            Kind.COMMIT, ("runner",), "something that happened in an attempt is counted"
        ),
        "worker.read": Boundary(Kind.COMMIT, _WORKERS, "a transaction that only reads"),
        "trainer.first": Boundary(Kind.COMMIT, _TRAINER, "policy version 0 is published"),
        "trainer.claim": Boundary(Kind.COMMIT, _TRAINER, "a batch takes groups, or is closed"),
        "trainer.commit": Boundary(Kind.COMMIT, _TRAINER, "a batch is trained, its policy version published"),
        "trainer.quarantine": Boundary(Kind.COMMIT, _TRAINER, "a batch that cannot be trained is given up"),
        "trainer.prune": Boundary(
            Kind.COMMIT, _TRAINER, "checkpoints that nobody needs are taken out of use"
        ),
        "trainer.read": Boundary(Kind.COMMIT, _TRAINER, "a transaction that only reads"),
        "presence.commit": Boundary(
            Kind.COMMIT,
            ("orchestrator", "gateway", "runner", "verifier", "trainer"),
            "a process says that it lives, and what its loops do",
        ),
        # --- the bus (bus.nats, bus.pull): by the kind of message ---
        "publish.tasks": Boundary(Kind.BUS, ("client",), "a task is submitted"),
        "publish.work.rollout": Boundary(Kind.BUS, _ORCHESTRATOR, "a rollout is assigned"),
        "publish.work.verify": Boundary(Kind.BUS, _ORCHESTRATOR, "a verification is assigned"),
        "publish.steps": Boundary(Kind.BUS, _GATEWAY, "a step leaves the journal"),
        "publish.results.rollout": Boundary(Kind.BUS, ("runner",), "a result leaves the journal"),
        "publish.results.verdict": Boundary(Kind.BUS, ("verifier",), "a verdict leaves the journal"),
        "publish.policy": Boundary(Kind.BUS, _ORCHESTRATOR, "a policy version is announced"),
        "publish.dead": Boundary(Kind.BUS, ("orchestrator", *_WORKERS), "a dead letter is published"),
        "notify": Boundary(
            Kind.BUS, _ORCHESTRATOR, "whoever waits hears that a task was accepted or rejected"
        ),
        "fetch": Boundary(Kind.BUS, ("orchestrator", "gateway", *_WORKERS), "a consumer asks for messages"),
        "ack.tasks": Boundary(Kind.BUS, _ORCHESTRATOR, "accepted tasks leave the stream"),
        "ack.work.rollout": Boundary(Kind.BUS, ("runner",), "a leased assignment leaves the stream"),
        "ack.work.verify": Boundary(Kind.BUS, ("verifier",), "a leased verification leaves the stream"),
        "ack.steps": Boundary(Kind.BUS, _ORCHESTRATOR, "stored steps leave the stream"),
        "ack.results.rollout": Boundary(Kind.BUS, _ORCHESTRATOR, "stored results leave the stream"),
        "ack.results.verdict": Boundary(Kind.BUS, _ORCHESTRATOR, "stored verdicts leave the stream"),
        "ack.policy": Boundary(Kind.BUS, _GATEWAY, "the gateway has heard of a policy version"),
        "ack.dead": Boundary(Kind.BUS, _ORCHESTRATOR, "kept dead letters are done with"),
        "nak": Boundary(
            Kind.BUS,
            ("orchestrator", *_WORKERS),
            "what is not done yet is handed back, or kept a little longer",
        ),
        "term": Boundary(
            Kind.BUS, ("orchestrator", *_WORKERS), "a message that is a dead letter now leaves its stream"
        ),
        # --- files ---
        "journal.segment": Boundary(Kind.DISK, ("gateway", *_WORKERS), "fsync of a new journal segment"),
        "journal.named": Boundary(Kind.DISK, ("gateway", *_WORKERS), "fsync of the journal's directory"),
        "journal.sync": Boundary(Kind.DISK, ("gateway", *_WORKERS), "fdatasync of what the journal keeps"),
        "checkpoint.link": Boundary(
            Kind.DISK, _TRAINER, "a file that the version before has too gets a name in a checkpoint"
        ),
        "checkpoint.sync": Boundary(Kind.DISK, _TRAINER, "fsync of one file of a checkpoint"),
        "checkpoint.rename": Boundary(Kind.DISK, _TRAINER, "a whole checkpoint gets its name"),
        "checkpoint.named": Boundary(Kind.DISK, _TRAINER, "fsync of the directory of checkpoints"),
        "checkpoint.discarded": Boundary(
            Kind.DISK, _TRAINER, "a checkpoint that nobody needs loses its name"
        ),
        "gateway.url": Boundary(Kind.DISK, _GATEWAY, "the gateway says where it listens"),
        "file.sync": Boundary(Kind.DISK, ("up",), "fsync of a small file of the supervisor"),
        "file.rename": Boundary(
            Kind.DISK, ("up",), "a small file of the supervisor replaces its predecessor"
        ),
        "log.rename": Boundary(Kind.DISK, ("up",), "a log that has grown too long is put aside"),
        "cluster.rename": Boundary(Kind.DISK, ("up",), "a new database cluster gets its name"),
        "export.sync": Boundary(Kind.DISK, ("client",), "fsync of a finished file of an export"),
        "export.rename": Boundary(Kind.DISK, ("client",), "a finished file of an export gets its name"),
        # --- weight syncs (gateway.sync, through gateway.upstream) ---
        "server.pause": Boundary(Kind.SERVER, _GATEWAY, "a rollout server stops generating"),
        "server.abort": Boundary(Kind.SERVER, _GATEWAY, "completions under way end with what they have"),
        "server.update": Boundary(Kind.SERVER, _GATEWAY, "a rollout server exchanges its weights"),
        "server.continue": Boundary(Kind.SERVER, _GATEWAY, "a rollout server goes on"),
        "server.canary": Boundary(Kind.SERVER, _GATEWAY, "the canary is asked for"),
        "weights.load": Boundary(Kind.DISK, ("rollout-server",), "new weights are read and checked"),
    }
)


async def boundary(name: str, act: Callable[[], Awaitable[T]]) -> T:
    """Perform `act` with its failpoints; its value is returned."""
    if directory is None:
        return await act()
    await reach(f"{name}.before")
    if doubled(name):
        await act()
    done = await act()
    await reach(f"{name}.after")
    return done


def boundary_sync(name: str, act: Callable[[], T]) -> T:
    """As `boundary`, where nothing can be awaited: in a thread, or before an event loop runs."""
    if directory is None:
        return act()
    _obey_sync(f"{name}.before")
    if doubled(name):
        act()
    done = act()
    _obey_sync(f"{name}.after")
    return done


async def reach(point: str) -> None:
    """One point alone, for an act that is no single call. Call it only when `directory` is set."""
    await anyio.sleep(_obey(point))


def doubled(name: str) -> bool:
    """Whether the act is to be performed twice this time. Call it only when `directory` is set."""
    action = _taken(name)
    if action not in (None, "duplicate"):
        raise ValueError(
            f"the failpoint {name} cannot do {action!r}: arm {name}.before or {name}.after with it"
        )
    return action is not None


def _obey_sync(point: str) -> None:
    time.sleep(_obey(point))


def _obey(point: str) -> float:
    """Do what the point is armed with; returns the seconds to wait."""
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
    """The next action that is armed for this process alone, else for any; None when there is none."""
    process = os.environ.get(PROCESS)
    mine = _taken_from(f"{file}@{process}") if process else None
    return mine or _taken_from(file)


def _taken_from(file: str) -> str | None:
    """The next action in `file` of the directory, which is then nobody else's; None when it is not armed."""
    assert directory is not None
    armed, mine = directory / file, directory / f".{file}.{os.getpid()}.{threading.get_ident()}"
    try:
        if not armed.stat().st_size:  # somebody is writing it
            return None
        armed.rename(mine)
    except FileNotFoundError:
        return None
    action, _, rest = mine.read_text().strip().partition("\n")
    with (directory / HITS).open("a") as hits:
        hits.write(f"{file} {action} {os.getpid()} {os.environ.get(PROCESS, '-')}\n")
    if rest:
        mine.write_text(rest)
        mine.rename(armed)
    else:
        mine.unlink()
    return action
