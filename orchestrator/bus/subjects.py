"""Every subject, stream, consumer and limit of the bus. These strings are written only here.

::

    tasks.<run>.<domain>                              TASKS    work queue, discard new   users -> orchestrator
    blobs.<sha256>                                    BLOBS    work queue, discard new   users -> orchestrator
    work.rollout.<run>.<pool>, work.verify.<run>.<pool>
                                                      WORK     work queue, discard new   orchestrator -> runners
    steps.<run>.<rollout>                             STEPS    work queue, discard new   gateway -> orchestrator
    results.rollout.<run>, results.verdict.<run>      RESULTS  work queue, discard new   runners -> orchestrator
    policy.<run>                                      POLICY   last per subject          trainer -> gateway, orchestrator
    dead.<stream>                                     DEAD     limits                    anyone -> orchestrator, operators
    accepted.<run>.<submission>                       (core NATS, not stored)            orchestrator -> users
    blobs_wanted.<id>, blobs_missing.<id>             (core NATS, not stored)            users <-> orchestrator

Invariants. Consumers of one work-queue stream never overlap: there is one durable per run, kind and pool. TASKS, BLOBS and DEAD have
one durable for all runs, so that a task for an unknown run is dead-lettered instead of staying unread. TASKS takes every
subject below ``tasks.``, so that a malformed subject is refused with a reason instead of vanishing. Strings here carry no
stream prefix: an adapter adds its own on the wire and removes it again.
"""

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.contracts.ids import check_domain, check_name
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Purpose
from orchestrator.settings.timeouts import timeouts

POOL_DEFAULT = "default"
POOL_EVAL = "eval"  # reserved for evaluation, which runs a pinned policy version

HEADER_MSG_ID = "Nats-Msg-Id"
HEADER_SCHEMA = "Penstock-Schema"  # "<schema name>/<version>", for example "StepRecorded/1"
HEADER_DEAD_REASON = "Penstock-Dead-Reason"
HEADER_DEAD_SUBJECT = "Penstock-Dead-Subject"
HEADER_DEAD_DELIVERIES = "Penstock-Dead-Deliveries"
HEADER_DEAD_BODY_BYTES = "Penstock-Dead-Body-Bytes"  # original length; if longer than the body, it was cut
HEADER_DEAD_MSG_ID = "Penstock-Dead-Msg-Id"
# "yes": the data pool has it already; "no": the orchestrator stores it there.
HEADER_DEAD_KEPT = "Penstock-Dead-Kept"

INLINE_LIMIT_BYTES = 512 * 1024  # above this a payload travels as `blob: sha256`, never inline
MIN_MAX_PAYLOAD_BYTES = 1024 * 1024  # the smallest max_payload that a server may have
DEDUP_WINDOW_S = 120.0  # a convenience: correctness rests on unique keys in the data pool
MAX_DELIVER = 20  # deliveries without an ack before the consumer dead-letters a message

_MIB = 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SUBMISSION = re.compile(r"[A-Za-z0-9_:@+=/-]+(\.[A-Za-z0-9_:@+=/-]+)*")
_MAX_SUBMISSION = 128


class Retention(StrEnum):
    """The messages that a stream keeps: unacknowledged ones, the newest per subject, or all within its limits."""

    WORK_QUEUE = "work_queue"
    LAST_PER_SUBJECT = "last_per_subject"
    LIMITS = "limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One JetStream stream. ``discard_new``: a full stream refuses (back-pressure) instead of dropping old messages.

    The server reserves ``max_bytes`` when the stream is created, so the sum must fit its store.
    """

    name: str
    subjects: tuple[str, ...]
    retention: Retention
    discard_new: bool
    max_msgs: int
    max_bytes: int
    max_age_s: float = 0.0  # 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One pull consumer. ``durable=None`` is private to its subscriber and starts with everything that the stream still has.

    ``max_deliver`` is our own rule, not the server's: the adapter moves a message that was delivered more often than this to
    ``dead.<stream>``. (A limit set in the server would leave it unread in the work queue indefinitely.)
    """

    stream: str
    durable: str | None
    filter: str
    max_ack_pending: int
    ack_wait_s: float = field(default_factory=lambda: timeouts().bus_ack_wait_s)
    max_deliver: int = MAX_DELIVER


TASKS = Stream(
    name="TASKS",
    subjects=("tasks.>",),
    retention=Retention.WORK_QUEUE,
    discard_new=True,
    max_msgs=100_000,
    max_bytes=512 * _MIB,
)
BLOBS = Stream(
    name="BLOBS",
    subjects=("blobs.*",),
    retention=Retention.WORK_QUEUE,
    discard_new=True,
    max_msgs=100_000,
    max_bytes=256 * _MIB,
)
WORK = Stream(
    name="WORK",
    subjects=("work.rollout.*.*", "work.verify.*.*"),
    retention=Retention.WORK_QUEUE,
    discard_new=True,
    max_msgs=1_000_000,
    max_bytes=256 * _MIB,
)
STEPS = Stream(
    name="STEPS",
    subjects=("steps.*.*",),
    retention=Retention.WORK_QUEUE,
    discard_new=True,
    max_msgs=1_000_000,
    max_bytes=1024 * _MIB,
)
RESULTS = Stream(
    name="RESULTS",
    subjects=("results.rollout.*", "results.verdict.*"),
    retention=Retention.WORK_QUEUE,
    discard_new=True,
    max_msgs=1_000_000,
    max_bytes=256 * _MIB,
)
POLICY = Stream(
    name="POLICY",
    subjects=("policy.*",),
    retention=Retention.LAST_PER_SUBJECT,
    discard_new=False,
    max_msgs=100_000,
    max_bytes=16 * _MIB,
)
DEAD = Stream(
    name="DEAD",
    subjects=("dead.*",),
    retention=Retention.LIMITS,
    discard_new=False,
    max_msgs=100_000,
    max_bytes=256 * _MIB,
    max_age_s=30 * 24 * 3600.0,
)
STREAMS = (TASKS, BLOBS, WORK, STEPS, RESULTS, POLICY, DEAD)
_BY_ROOT = {pattern.split(".", 1)[0]: stream for stream in STREAMS for pattern in stream.subjects}


def _check_id(kind: str, value: str) -> str:
    if not _ID.fullmatch(value):
        raise ValueError(
            f"the {kind} id {quoted(value)} cannot be used: write 1 to 128 letters, digits, '_' or '-'"
        )
    return value


def is_submission(text: str, *, most: int = _MAX_SUBMISSION) -> bool:
    """True if ``text`` can be a submission id, or a part of one with at most ``most`` characters."""
    return len(text) <= most and _SUBMISSION.fullmatch(text) is not None


def check_submission(submission: str) -> str:
    """Return ``submission`` if it is valid in a subject; otherwise raise ValueError with one sentence."""
    if not is_submission(submission):
        raise ValueError(
            f"the submission id {quoted(submission)} cannot be used: write 1 to 128 letters, digits or '_:@+=/-', "
            "with single dots inside if you like"
        )
    return submission


def submission_named(body: bytes) -> str | None:
    """The id in a submission, even if the rest is invalid. None: it has no id to which an answer could be sent."""
    try:
        return check_submission(json.loads(body)["submission"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


# --- subjects -------------------------------------------------------------------------------------------------


def tasks(run: str, domain: str) -> str:
    """TaskSubmitted, from users."""
    return f"tasks.{check_name('run', run)}.{check_domain(domain)}"


def blob(sha: str) -> str:
    """Up to 900,000 bytes of a task's file, or a directory of it, from users; `sha` is the hex sha256 of the body."""
    return f"blobs.{_check_id('blob', sha)}"


def blobs_wanted(question: str) -> str:
    """A publisher's question which blobs are missing. Core NATS."""
    return f"blobs_wanted.{_check_id('question', question)}"


def blobs_missing(question: str) -> str:
    """The answer to a question. Core NATS."""
    return f"blobs_missing.{_check_id('question', question)}"


def every_blobs_wanted() -> str:
    """The pattern of all questions."""
    return "blobs_wanted.*"


def pool_for(purpose: Purpose) -> str:
    """The pool of runners and verifier runners that works on groups of a purpose."""
    return POOL_DEFAULT if purpose is Purpose.TRAIN else POOL_EVAL


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
    """The notice that a submission was accepted or rejected. Core NATS: it reaches only current listeners."""
    return f"accepted.{check_name('run', run)}.{check_submission(submission)}"


def every_answer(run: str) -> str:
    """The pattern of all notices of one run."""
    return f"accepted.{check_name('run', run)}.>"


# --- reading subjects -----------------------------------------------------------------------------------------


def parse_tasks(subject: str) -> tuple[str, str]:
    """``tasks.<run>.<domain>`` -> (run, domain); ValueError with one sentence if it is not of that form."""
    match subject.split("."):
        case ["tasks", run, domain]:
            return check_name("run", run), check_domain(domain)
    raise ValueError(f"the subject {quoted(subject)} is not tasks.<run>.<domain>")


def run_of(subject: str) -> str:
    """The run in one of our subjects; ValueError for ``dead.*`` and for foreign subjects."""
    match subject.split("."):
        case (
            [("tasks" | "steps" | "accepted"), run, _, *_]
            | [("work" | "results"), _, run, *_]
            | ["policy", run]
        ):
            return check_name("run", run)
    raise ValueError(f"the subject {quoted(subject)} names no run")


def stream_of(subject: str) -> Stream:
    """The stream that stores a subject; ValueError for a subject that no stream stores."""
    stream = _BY_ROOT.get(subject.split(".", 1)[0])
    if stream is not None and any(matches(pattern, subject) for pattern in stream.subjects):
        return stream
    raise ValueError(f"no stream stores the subject {quoted(subject)}")


def kind_of(subject: str) -> str:
    """The kind of message that a subject carries: ``tasks``, ``blobs``, ``work.rollout``, ``work.verify``, ``steps``, ``results.rollout``,
    ``results.verdict``, ``policy`` or ``dead``."""
    root, _, rest = subject.partition(".")
    return f"{root}.{rest.partition('.')[0]}" if root in ("work", "results") else root


def matches(pattern: str, subject: str) -> bool:
    """NATS subject matching: ``*`` is one token, a final ``>`` is one or more tokens."""
    pattern_tokens, subject_tokens = pattern.split("."), subject.split(".")
    if pattern_tokens[-1] == ">":
        pattern_tokens.pop()
        if len(subject_tokens) <= len(pattern_tokens):
            return False
        subject_tokens = subject_tokens[: len(pattern_tokens)]
    return len(pattern_tokens) == len(subject_tokens) and all(
        w in ("*", g) for w, g in zip(pattern_tokens, subject_tokens, strict=True)
    )


# --- consumers ------------------------------------------------------------------------------------------------
# ':' joins names, because no run or pool contains it: ("a-b", "c") and ("a", "b-c") stay distinct.


def consume_tasks() -> Consumer:
    """The single durable of TASKS, for all runs."""
    return Consumer(stream="TASKS", durable="tasks", filter="tasks.>", max_ack_pending=1024)


def consume_blobs() -> Consumer:
    """The single durable of BLOBS, for all runs."""
    return Consumer(stream="BLOBS", durable="blobs", filter="blobs.*", max_ack_pending=256)


def consume_work_rollout(run: str, pool: str = POOL_DEFAULT) -> Consumer:
    """Shared by the runners of a pool."""
    return Consumer(
        stream="WORK", durable=f"rollout:{run}:{pool}", filter=work_rollout(run, pool), max_ack_pending=4096
    )


def consume_work_verify(run: str, pool: str = POOL_DEFAULT) -> Consumer:
    """Shared by the verifier runners of a pool."""
    return Consumer(
        stream="WORK", durable=f"verify:{run}:{pool}", filter=work_verify(run, pool), max_ack_pending=4096
    )


def consume_steps(run: str) -> Consumer:
    """Shared by the orchestrators of a run."""
    return Consumer(
        stream="STEPS",
        durable=f"steps:{run}",
        filter=f"steps.{check_name('run', run)}.*",
        max_ack_pending=8192,
    )


def consume_results_rollout(run: str) -> Consumer:
    """Shared by the orchestrators of a run."""
    return Consumer(
        stream="RESULTS", durable=f"rollout:{run}", filter=results_rollout(run), max_ack_pending=1024
    )


def consume_results_verdict(run: str) -> Consumer:
    """Shared by the orchestrators of a run."""
    return Consumer(
        stream="RESULTS", durable=f"verdict:{run}", filter=results_verdict(run), max_ack_pending=1024
    )


def consume_policy(run: str) -> Consumer:
    """Private: every reader sees every newest version, and a late reader starts with the last one."""
    return Consumer(stream="POLICY", durable=None, filter=policy(run), max_ack_pending=64)


def consume_dead_letters() -> Consumer:
    """The single durable of DEAD, for all runs. A dead letter is never dead-lettered, however often it is delivered."""
    # NATS keeps the durable under this name, and DEAD keeps its messages after their acknowledgement. A durable with another name would start at the
    # first of them: those that were dropped, sent again or pruned would come back as new dead letters.
    return Consumer(stream="DEAD", durable="letters", filter="dead.*", max_ack_pending=256, max_deliver=2**31)
