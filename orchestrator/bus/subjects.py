"""Every subject, stream, consumer and limit of the bus: the only place where these strings are written.

::

    tasks.<run>.<domain>                              TASKS    work queue, discard new   users -> orchestrator
    work.rollout.<run>.<pool>, work.verify.<run>.<pool>
                                                      WORK     work queue, discard new   orchestrator -> runners
    steps.<run>.<rollout>                             STEPS    work queue, discard new   gateway -> orchestrator
    results.rollout.<run>, results.verdict.<run>      RESULTS  work queue, discard new   runners -> orchestrator
    policy.<run>                                      POLICY   last per subject          trainer -> gateway, orchestrator
    dead.<stream>                                     DEAD     limits                    anyone -> orchestrator, operators
    accepted.<run>.<submission>                       (core NATS, not stored)            orchestrator -> users

Invariants. Consumers of one work-queue stream never overlap: one durable per run, kind and pool; TASKS has one
durable for all runs, so that a task for an unknown run is dead-lettered instead of lying unread, and so has DEAD. TASKS takes every
subject below ``tasks.``, so that a malformed one is refused with a reason instead of vanishing. Strings here carry no
stream prefix: an adapter adds its own on the wire and removes it again.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.clock import clock

POOL_DEFAULT = "default"
POOL_EVAL = "eval"  # reserved for evaluation, which runs a pinned policy version

HEADER_MSG_ID = "Nats-Msg-Id"
HEADER_SCHEMA = "Penstock-Schema"  # "<schema name>/<version>", for example "StepRecorded/1"
HEADER_DEAD_REASON = "Penstock-Dead-Reason"
HEADER_DEAD_SUBJECT = "Penstock-Dead-Subject"
HEADER_DEAD_DELIVERIES = "Penstock-Dead-Deliveries"
HEADER_DEAD_BODY_BYTES = "Penstock-Dead-Body-Bytes"  # length of the original body; longer than the body: cut
HEADER_DEAD_MSG_ID = "Penstock-Dead-Msg-Id"
HEADER_DEAD_KEPT = (
    "Penstock-Dead-Kept"  # "yes": who found it has it in the data pool; "no": the orchestrator puts it there
)

INLINE_LIMIT_BYTES = 512 * 1024  # above this a payload travels as `blob: sha256`, never inline
MIN_MAX_PAYLOAD_BYTES = 1024 * 1024  # what a server must accept at least
DEDUP_WINDOW_S = 120.0  # a convenience: correctness rests on unique keys in the data pool
MAX_DELIVER = 20  # deliveries without an ack before a message is dead-lettered by its consumer

_MIB = 1024 * 1024
_NAME = re.compile(r"[a-z0-9_-]{1,32}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SUBMISSION = re.compile(r"(?=.{1,128}\Z)[A-Za-z0-9_:@+=/-]+(\.[A-Za-z0-9_:@+=/-]+)*")


class Retention(StrEnum):
    """What a stream keeps: a message until it is acknowledged, the newest per subject, or all within its limits."""

    WORK_QUEUE = "work_queue"
    LAST_PER_SUBJECT = "last_per_subject"
    LIMITS = "limits"


@dataclass(frozen=True, slots=True)
class Stream:
    """One JetStream stream. ``discard_new``: a full stream refuses (back-pressure) instead of dropping old messages.

    ``max_bytes`` is reserved by the server when the stream is created, so the sum must fit its store.
    """

    name: str
    subjects: tuple[str, ...]
    retention: Retention
    discard_new: bool
    max_msgs: int
    max_bytes: int
    max_age_s: float = 0.0  # 0: no limit


@dataclass(frozen=True, slots=True)
class Consumer:
    """One pull consumer. ``durable=None`` is private to its subscriber and starts with all that the stream still has.

    ``max_deliver`` is our own rule, not the server's: a message that was delivered more often than this is moved to
    ``dead.<stream>`` by the adapter. (A limit set in the server would leave it unread in the work queue for ever.)
    """

    stream: str
    durable: str | None
    filter: str
    max_ack_pending: int
    ack_wait_s: float = field(default_factory=lambda: clock().bus_ack_wait_s)
    max_deliver: int = MAX_DELIVER


TASKS = Stream("TASKS", ("tasks.>",), Retention.WORK_QUEUE, True, 100_000, 512 * _MIB)
WORK = Stream(
    "WORK", ("work.rollout.*.*", "work.verify.*.*"), Retention.WORK_QUEUE, True, 1_000_000, 256 * _MIB
)
STEPS = Stream("STEPS", ("steps.*.*",), Retention.WORK_QUEUE, True, 1_000_000, 1024 * _MIB)
RESULTS = Stream(
    "RESULTS", ("results.rollout.*", "results.verdict.*"), Retention.WORK_QUEUE, True, 1_000_000, 256 * _MIB
)
POLICY = Stream("POLICY", ("policy.*",), Retention.LAST_PER_SUBJECT, False, 100_000, 16 * _MIB)
DEAD = Stream("DEAD", ("dead.*",), Retention.LIMITS, False, 100_000, 256 * _MIB, max_age_s=30 * 24 * 3600.0)
STREAMS = (TASKS, WORK, STEPS, RESULTS, POLICY, DEAD)
_BY_ROOT = {pattern.split(".", 1)[0]: stream for stream in STREAMS for pattern in stream.subjects}


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it may name a run, pool or domain; raise ValueError with one sentence otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the {kind} name {name!r} cannot be used: write 1 to 32 of the characters a-z, 0-9, '_' and '-'"
        )
    return name


def _check_id(kind: str, value: str) -> str:
    if not _ID.fullmatch(value):
        raise ValueError(
            f"the {kind} id {value!r} cannot be used: write 1 to 128 letters, digits, '_' or '-'"
        )
    return value


def check_submission(submission: str) -> str:
    """Return ``submission`` if it can stand in a subject; raise ValueError with one sentence otherwise."""
    if not _SUBMISSION.fullmatch(submission):
        raise ValueError(
            f"the submission id {submission!r} cannot be used: write 1 to 128 letters, digits or '_:@+=/-', "
            "with single dots inside if you like"
        )
    return submission


# --- subjects -------------------------------------------------------------------------------------------------


def tasks(run: str, domain: str) -> str:
    """TaskSubmitted, from users."""
    return f"tasks.{check_name('run', run)}.{check_name('domain', domain)}"


def work_rollout(run: str, pool: str = POOL_DEFAULT) -> str:
    """RolloutAssigned, to runners of the pool."""
    return f"work.rollout.{check_name('run', run)}.{check_name('pool', pool)}"


def work_verify(run: str, pool: str = POOL_DEFAULT) -> str:
    """VerifyAssigned, to verifier runners of the pool."""
    return f"work.verify.{check_name('run', run)}.{check_name('pool', pool)}"


def steps(run: str, rollout_id: str) -> str:
    """StepRecorded, from the gateway."""
    return f"steps.{check_name('run', run)}.{_check_id('rollout', rollout_id)}"


def results_rollout(run: str) -> str:
    """RolloutFinished, from runners."""
    return f"results.rollout.{check_name('run', run)}"


def results_verdict(run: str) -> str:
    """VerdictReached, from verifier runners."""
    return f"results.verdict.{check_name('run', run)}"


def policy(run: str) -> str:
    """PolicyPublished, from the trainer's outbox."""
    return f"policy.{check_name('run', run)}"


def dead(stream: str) -> str:
    """The dead letters of one stream, for example ``dead.tasks``."""
    return f"dead.{stream.lower()}"


def accepted(run: str, submission: str) -> str:
    """The notice that a submission was accepted or rejected; core NATS, so only who listens hears it."""
    return f"accepted.{check_name('run', run)}.{check_submission(submission)}"


def every_answer(run: str) -> str:
    """The pattern of all notices of one run."""
    return f"accepted.{check_name('run', run)}.>"


# --- reading subjects -----------------------------------------------------------------------------------------


def parse_tasks(subject: str) -> tuple[str, str]:
    """``tasks.<run>.<domain>`` -> (run, domain); ValueError with one sentence if it is not of that form."""
    match subject.split("."):
        case ["tasks", run, domain]:
            return check_name("run", run), check_name("domain", domain)
    raise ValueError(f"the subject {subject!r} is not tasks.<run>.<domain>")


def parse_steps(subject: str) -> tuple[str, str]:
    """``steps.<run>.<rollout>`` -> (run, rollout id); ValueError with one sentence if it is not of that form."""
    match subject.split("."):
        case ["steps", run, rollout_id]:
            return check_name("run", run), _check_id("rollout", rollout_id)
    raise ValueError(f"the subject {subject!r} is not steps.<run>.<rollout>")


def run_of(subject: str) -> str:
    """The run that a subject of ours names; ValueError for ``dead.*`` and for foreign subjects."""
    match subject.split("."):
        case (
            [("tasks" | "steps" | "accepted"), run, _, *_]
            | [("work" | "results"), _, run, *_]
            | ["policy", run]
        ):
            return check_name("run", run)
    raise ValueError(f"the subject {subject!r} names no run")


def stream_of(subject: str) -> Stream:
    """The stream that stores a subject; ValueError for a subject that no stream stores."""
    stream = _BY_ROOT.get(subject.split(".", 1)[0])
    if stream is not None and any(matches(pattern, subject) for pattern in stream.subjects):
        return stream
    raise ValueError(f"no stream stores the subject {subject!r}")


def kind_of(subject: str) -> str:
    """What sort of message a subject carries: ``tasks``, ``work.rollout``, ``work.verify``, ``steps``, ``results.rollout``,
    ``results.verdict``, ``policy`` or ``dead``."""
    root, _, rest = subject.partition(".")
    return f"{root}.{rest.partition('.')[0]}" if root in ("work", "results") else root


def matches(pattern: str, subject: str) -> bool:
    """NATS subject matching: ``*`` is one token, a final ``>`` one or more tokens."""
    wanted, got = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(got) <= len(wanted):
            return False
        got = got[: len(wanted)]
    return len(wanted) == len(got) and all(w in ("*", g) for w, g in zip(wanted, got, strict=True))


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


# --- consumers ------------------------------------------------------------------------------------------------
# Names are joined with ':', which no run or pool contains, so that ("a-b", "c") and ("a", "b-c") stay apart.


def consume_tasks() -> Consumer:
    """The one durable of TASKS, for all runs."""
    return Consumer("TASKS", "tasks", "tasks.>", max_ack_pending=1024)


def consume_work_rollout(run: str, pool: str = POOL_DEFAULT) -> Consumer:
    """Shared by the runners of a pool."""
    return Consumer("WORK", f"rollout:{run}:{pool}", work_rollout(run, pool), max_ack_pending=4096)


def consume_work_verify(run: str, pool: str = POOL_DEFAULT) -> Consumer:
    """Shared by the verifier runners of a pool."""
    return Consumer("WORK", f"verify:{run}:{pool}", work_verify(run, pool), max_ack_pending=4096)


def consume_steps(run: str) -> Consumer:
    """Shared by the orchestrators of a run."""
    return Consumer("STEPS", f"steps:{run}", f"steps.{check_name('run', run)}.*", max_ack_pending=8192)


def consume_results_rollout(run: str) -> Consumer:
    """Shared by the orchestrators of a run."""
    return Consumer("RESULTS", f"rollout:{run}", results_rollout(run), max_ack_pending=1024)


def consume_results_verdict(run: str) -> Consumer:
    """Shared by the orchestrators of a run."""
    return Consumer("RESULTS", f"verdict:{run}", results_verdict(run), max_ack_pending=1024)


def consume_policy(run: str) -> Consumer:
    """Private: every reader sees every newest version, and a late reader starts with the last one."""
    return Consumer("POLICY", None, policy(run), max_ack_pending=64)


def consume_letters() -> Consumer:
    """The one durable of DEAD, for all runs. However often one comes, there is no letter about a letter."""
    return Consumer("DEAD", "letters", "dead.*", max_ack_pending=256, max_deliver=2**31)


def consume_dead(stream: str) -> Consumer:
    """Private: an operator's view of the dead letters of one stream (those kept, then new ones)."""
    return Consumer("DEAD", None, dead(stream), max_ack_pending=1024)
