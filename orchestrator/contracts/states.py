"""States, their transition tables and terminal sets. The database write is a compare-and-set on the from-state.

`check` refuses a transition that no table lists, before any SQL runs: it is a bug.
"""

from collections.abc import Mapping
from enum import StrEnum


class Purpose(StrEnum):
    """Why a group exists; its rollouts inherit it. Only `train` groups get a queue position."""

    TRAIN = "train"
    EVAL = "eval"
    RECORD = "record"


class RunState(StrEnum):
    """A run, from its start to its end."""

    ACTIVE = "active"
    ENDING = "ending"  # its end was requested; submissions are still open
    ENDED = "ended"


class SubmissionStatus(StrEnum):
    """The final answer to a task message."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class GroupState(StrEnum):
    """One accepted submission: the unit of the queue."""

    ACCEPTED = "accepted"  # committed, waiting for admission
    DISPATCHED = "dispatched"  # has a seq (train), its rollouts are queued
    READY = "ready"  # every member terminal and verified, rewards written
    TAKEN = "taken"  # a row in a batch
    TRAINED = "trained"  # that batch is committed
    SCORED = "scored"  # eval and record groups end here
    FILTERED = "filtered"  # resolved without training, with a FilterReason
    DEAD = "dead"  # dead letter, with a reason


class RolloutState(StrEnum):
    """One try of a task inside a group."""

    WAITING = "waiting"  # the group is not dispatched yet
    QUEUED = "queued"  # an assignment for the current lease epoch is in the outbox or on WORK
    RUNNING = "running"  # leased by a runner
    REPORTED = "reported"  # the result is in, but some announced steps are missing
    FINISHED = "finished"  # all steps are in; a verification is queued
    VERIFYING = "verifying"  # leased by a verifier runner
    VERIFIED = "verified"  # a verdict is in
    LOST = "lost"  # attempts used up, or cancelled: not in the baseline and the batch


class BatchState(StrEnum):
    """One claim of P groups."""

    OPEN = "open"  # takes groups; each take moves the window
    CLOSED = "closed"  # complete; its digest is fixed
    COMMITTED = "committed"  # trained, checkpointed, version written
    VOIDED = "voided"  # undone by a rewind, or quarantined


class Entity(StrEnum):
    """The subject of a row of the history. MESSAGE: a dead letter."""

    GROUP = "group"
    ROLLOUT = "rollout"
    BATCH = "batch"
    RUN = "run"
    MESSAGE = "message"


class FailureClass(StrEnum):
    """How a rollout attempt ended. Only `completed`, `policy_failure` and (by configuration) `timeout` are verified and rewarded."""

    COMPLETED = "completed"
    POLICY_FAILURE = "policy_failure"
    TIMEOUT = "timeout"
    INFRA_FAILURE = "infra_failure"
    VERIFIER_FAILURE = "verifier_failure"
    POISON = "poison"
    CANCELLED = "cancelled"


class SlotPhase(StrEnum):
    """The uses of a runner's slot, in order."""

    SESSION = "session"
    SANDBOX = "sandbox"  # opening and closing it
    AGENT = "agent"
    CHANGES = "changes"  # what the agent left
    SEAL = "seal"
    OTHER = "other"  # between the others


class Left(StrEnum):
    """The kind of a path that an attempt left in its work directory. BEHIND: it cannot be copied to the tests. COLLECTED: something outside of the
    work directory, by its absolute path. ANSWER: the final message of one step, by the path at which its tests find it."""

    FILE = "file"
    LINK = "link"
    DIRECTORY = "directory"
    BEHIND = "behind"
    COLLECTED = "collected"
    ANSWER = "answer"


class Replay(StrEnum):
    """The result of a resume: the recorded steps of an attempt are served again to its scaffold under a new lease."""

    CONTINUED = "continued"  # all recorded steps were requested again, and the attempt continued
    # A request differs from its recorded step: the next attempt starts from the beginning.
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"  # it ended before all steps were requested; not the replay's fault


class FilterReason(StrEnum):
    """Why a group was resolved without being trained."""

    TOO_FEW = "too_few"
    ZERO_SIGNAL = "zero_signal"
    RUN_ENDED = "run_ended"
    STAGE_OVER = "stage_over"  # neither the current stage nor a later stage takes such tasks
    WRONG_VERSION = "wrong_version"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"  # its batch produced a non-finite loss or gradient, cannot be read, or failed repeatedly


class Silence(StrEnum):
    """Why a group gives no training signal."""

    EQUAL_PERFORMANCE = "equal performance"
    NO_SUCCESS = "equal performance; fewer than two successes, so no speed to compare"
    NOT_MEASURED = "equal performance; speed noise not measured"
    WITHIN_NOISE = "equal performance; speed differs by less than 3 x its noise"
    BELOW_SPEED = "performance differs by less than what speed pays; speed by less than 3 x its noise, or that is not measured"
    BELOW_PROCESS = "neither performance nor speed differs by as much as what process pays"
    EQUAL_RETURNS = "equal returns"


class SpeedBase(StrEnum):
    """The origin of the time that a member's speed is measured against (orchestrator/rewards/speed.py)."""

    REFERENCE = "reference"  # the task's reference time
    SIBLINGS = "siblings"  # the median of the successful siblings
    ITSELF = "itself"  # no sibling succeeded


class StepKind(StrEnum):
    """How a step's state relates to an earlier step of the same attempt."""

    ROOT = "root"  # state = prompt[:keep_len] + delta
    CONTINUES = "continues"  # keep_len = |parent.full|
    REWRITES = "rewrites"  # keep_len < |parent.full|: the longest common prefix with any earlier step


class SessionState(StrEnum):
    """The session of one lease at its gateway."""

    OPEN = "open"
    SEALED = "sealed"  # its steps are announced
    CLOSED = "closed"  # it ended without an announcement


class DrainKind(StrEnum):
    """Processes that can be drained. A verifier runner is a runner."""

    RUNNER = "runner"
    GATEWAY = "gateway"
    SERVER = "server"  # a rollout server


class BacklogStageName(StrEnum):
    """The stages of unfinished work, in the order in which a task passes through them (pool/backlog.py)."""

    DISPATCH = "dispatch"  # accepted groups
    LEASE = "lease"  # queued rollouts
    RUN = "run"  # leased rollouts
    SETTLE = "settle"  # reported rollouts with missing steps
    VERIFY = "verify"  # queued verifications
    GRADE = "grade"  # leased verifications
    REAP = "reap"  # expired leases
    CONCLUDE = "conclude"  # groups whose members are all terminal
    TAKE = "take"  # ready groups
    COMMIT = "commit"  # the closed batch
    PUBLISH = "publish"  # messages in the outbox
    SYNC = "sync"  # servers without the newest version


class ServerState(StrEnum):
    """A rollout server as its owning gateway sees it."""

    STARTING = "starting"
    SYNCING = "syncing"
    READY = "ready"
    FAILED = "failed"


GROUP_TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.ACCEPTED: frozenset({GroupState.DISPATCHED, GroupState.FILTERED, GroupState.DEAD}),
    GroupState.DISPATCHED: frozenset(
        {GroupState.READY, GroupState.SCORED, GroupState.FILTERED, GroupState.DEAD}
    ),
    # Back to dispatched only by a rescore: its rollouts are verified again.
    GroupState.READY: frozenset({GroupState.TAKEN, GroupState.FILTERED, GroupState.DISPATCHED}),
    GroupState.TAKEN: frozenset({GroupState.TRAINED, GroupState.READY, GroupState.FILTERED}),
    GroupState.TRAINED: frozenset({GroupState.READY}),  # only by a rewind
    GroupState.SCORED: frozenset(),
    GroupState.FILTERED: frozenset(),
    GroupState.DEAD: frozenset(),
}
GROUP_TERMINAL = frozenset({GroupState.TRAINED, GroupState.SCORED, GroupState.FILTERED, GroupState.DEAD})

ROLLOUT_TRANSITIONS: Mapping[RolloutState, frozenset[RolloutState]] = {
    RolloutState.WAITING: frozenset({RolloutState.QUEUED, RolloutState.LOST}),
    RolloutState.QUEUED: frozenset({RolloutState.RUNNING, RolloutState.LOST}),
    RolloutState.RUNNING: frozenset({RolloutState.REPORTED, RolloutState.QUEUED, RolloutState.LOST}),
    RolloutState.REPORTED: frozenset({RolloutState.FINISHED, RolloutState.QUEUED, RolloutState.LOST}),
    RolloutState.FINISHED: frozenset({RolloutState.VERIFYING, RolloutState.LOST}),
    RolloutState.VERIFYING: frozenset({RolloutState.VERIFIED, RolloutState.FINISHED, RolloutState.LOST}),
    RolloutState.VERIFIED: frozenset({RolloutState.FINISHED}),  # only by a rescore
    RolloutState.LOST: frozenset(),
}
ROLLOUT_TERMINAL = frozenset({RolloutState.VERIFIED, RolloutState.LOST})

BATCH_TRANSITIONS: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.OPEN: frozenset({BatchState.CLOSED, BatchState.VOIDED}),
    # Closed again: training failed.
    BatchState.CLOSED: frozenset({BatchState.CLOSED, BatchState.COMMITTED, BatchState.VOIDED}),
    BatchState.COMMITTED: frozenset({BatchState.VOIDED}),
    BatchState.VOIDED: frozenset(),
}


def check(before: StrEnum, after: StrEnum) -> None:
    """Assert that `before → after` is a listed transition of one machine."""
    match before, after:
        case GroupState(), GroupState():
            allowed = after in GROUP_TRANSITIONS[before]
        case RolloutState(), RolloutState():
            allowed = after in ROLLOUT_TRANSITIONS[before]
        case BatchState(), BatchState():
            allowed = after in BATCH_TRANSITIONS[before]
        case _:
            allowed = False
    assert allowed, f"{type(before).__name__}: {before} → {after} is not a transition"
