"""How an attempt ended, as data: the one place where exceptions become failure classes.

From its first served step on, a policy can end its attempt in many ways: its commands run as the program's own user, fill disks, use up processes
and hold calls open. If an end that only looks like the platform's fault were retried, ending a bad attempt would pay off. So every end that the
policy's programs can cause (`AttemptOutcome.reachable`) is attributed to the policy, unless the platform shows a fault of its own that no session can
cause (`judged`). ops/guides/how-attempts-end.md lists all ends.
"""

import errno
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from scaffolds.base import PolicyFault

from orchestrator.contracts.errors import Hung, RolloutFailure, ServiceError
from orchestrator.contracts.limits import MAX_KEPT_LOG, MAX_REASON
from orchestrator.contracts.marks import MarkReason
from orchestrator.contracts.quote import cut_to
from orchestrator.contracts.states import FailureClass, Replay
from orchestrator.gateway_client import BudgetExhausted, GatewayAway, GatewayDrains, Seal
from orchestrator.pool.sanitize import clean
from orchestrator.runner.clocks import Clocks
from orchestrator.runtime.log import get
from sandboxes.base import ImageRefused, MachineFault, SandboxError, SandboxFull, SandboxLost, SandboxSpent
from sandboxes.machine import FAULTS

log = get(__name__)

# Faults of this process or this machine, which all attempts share.
OURS = FAULTS | {errno.ENOMEM}
# Marks of steps that cannot have moved the program.
NOT_DELIVERED = frozenset({MarkReason.AUXILIARY, MarkReason.UNDELIVERED, MarkReason.CUT_OFF})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """`answer` is the final message, None without one. `log` is for people. `scaffold_error`: an unforeseen error, to be counted.
    `reachable`: the policy's programs can cause this end; `against`: its failure class if it is attributed to the policy.
    `platform`: the platform failure that the runner itself saw while the program ran, None if none. `resumable`: an infrastructure failure
    whose recorded steps are worth resuming. `replay`: the result of a resume, None if it was none. `ungradable`: why the agent's work cannot
    be graded, None if it can; if the attempt counts, the verdict is then 0.

    Texts are cleaned for messages and for Postgres.
    """

    failure: FailureClass
    reason: str | None = None
    answer: str | None = None
    log: str = ""
    scaffold_error: bool = False
    reachable: bool = False
    against: FailureClass = FailureClass.POLICY_FAILURE
    platform: str | None = None
    resumable: bool = False
    replay: Replay | None = None
    ungradable: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            object.__setattr__(self, "reason", cut_to(clean(self.reason), MAX_REASON))
        if self.ungradable is not None:
            object.__setattr__(self, "ungradable", cut_to(clean(self.ungradable), MAX_REASON))
        object.__setattr__(self, "log", clean(self.log)[-MAX_KEPT_LOG:])
        if self.answer is not None:
            object.__setattr__(self, "answer", clean(self.answer))

    @property
    def infra(self) -> bool:
        return self.failure is FailureClass.INFRA_FAILURE


async def captured(work: Callable[[], Awaitable[AttemptOutcome]], *, agent: bool = True) -> AttemptOutcome:
    """The result of `work`, or the outcome of its exception. `agent`: the agent runs in `work`; failures elsewhere are never the policy's.
    ServiceError (for a person to fix), SandboxFull and GatewayDrains (the work never started) and cancellation pass through."""
    try:
        return await work()
    except (ServiceError, SandboxFull, GatewayDrains):
        raise
    except Exception as error:  # noqa: BLE001 - every failure of a rollout is data; unforeseen ones are logged and counted
        outcome = outcome_of(root_cause(error))
        return outcome if agent else replace(outcome, reachable=False)


def outcome_of(error: Exception) -> AttemptOutcome:
    """The failure class of one exception, by vocabulary, before `judged`."""
    match error:
        case BudgetExhausted():
            return AttemptOutcome(failure=FailureClass.POLICY_FAILURE, reason=error.which)
        case GatewayAway():
            return AttemptOutcome(failure=error.failure, reason=str(error), resumable=True)
        case Hung():
            return AttemptOutcome(
                failure=error.failure, reason=str(error), reachable=True, against=FailureClass.TIMEOUT
            )
        case RolloutFailure():
            return AttemptOutcome(failure=error.failure, reason=str(error), reachable=error.reachable)
        case PolicyFault():
            return AttemptOutcome(failure=FailureClass.POLICY_FAILURE, reason=str(error))
        case SandboxLost():
            return AttemptOutcome(
                failure=FailureClass.INFRA_FAILURE, reason=f"sandbox: {error}", resumable=True
            )
        case SandboxSpent():
            return AttemptOutcome(
                failure=FailureClass.INFRA_FAILURE, reason=f"sandbox: {error}", reachable=True
            )
        case MachineFault():
            return AttemptOutcome(
                failure=FailureClass.INFRA_FAILURE, reason=f"sandbox: {error}", resumable=True
            )
        case SandboxError():
            return AttemptOutcome(
                failure=FailureClass.INFRA_FAILURE, reason=f"sandbox: {error}", reachable=True, resumable=True
            )
        case ImageRefused():  # every attempt gets the same image: its group ends as a dead letter with this reason
            return AttemptOutcome(failure=FailureClass.INFRA_FAILURE, reason=f"task: {error}")
    last = traceback.format_exception_only(error)[-1].strip()
    log.error("scaffold.error", error=last, exc_info=error)
    # A scaffold can also fail because of the policy's output or files: its first served step decides here too.
    platform_error = isinstance(error, OSError) and error.errno in OURS
    reason = f"scaffold: {type(error).__name__}"
    return AttemptOutcome(
        failure=FailureClass.INFRA_FAILURE,
        reason=reason,
        log=last,
        scaffold_error=True,
        reachable=not platform_error,
    )


def judged(outcome: AttemptOutcome, seal: Seal, clocks: Clocks | None = None) -> AttemptOutcome:
    """An end that the policy's programs can cause, checked against the gateway's view of its session.

    From the first served step on, only the platform's own evidence makes an infrastructure failure: a call that the gateway failed for lack of a
    resource, a gateway that was silent for other reasons than this session's requests, or that was restarted. Before that step, nothing is attributed
    to the policy: an attempt that runs out of time has a hanging scaffold. Exit code 0 alone is not a success either: at least one completion must
    have reached the program, and the platform must not have failed the last one that it requested. It tolerated other failed calls.

    `clocks`: of the attempt. If most of the agent's own time in its runs is generation when a clock ends it, the policy did not finish its first
    reply, and no scaffold hangs. Collect hooks run later, so their time does not count here.
    """
    if not outcome.reachable:
        return outcome
    completed = outcome.failure is FailureClass.COMPLETED
    if seal.exhausted and (outcome.answer is None or not completed):
        return _against(outcome, FailureClass.POLICY_FAILURE, seal.exhausted)
    if outcome.failure is FailureClass.POLICY_FAILURE:
        return outcome
    if failed := outcome.platform or (seal.last_failed if completed else seal.failing):
        return replace(
            outcome, failure=FailureClass.INFRA_FAILURE, reason=f"gateway: {failed}", resumable=True
        )
    own_s = clocks.own_in_runs_s if clocks is not None else 0.0
    if _first(seal) and own_s and seal.generation_s >= own_s / 2:
        if outcome.failure is FailureClass.TIMEOUT:
            return outcome
        if outcome.against is FailureClass.TIMEOUT and _cut_off(seal):
            return _against(outcome, FailureClass.TIMEOUT, outcome.reason)
    if not served(seal):
        prefix = f"{outcome.reason}; " if outcome.reason else ""
        reason = outcome.reason if outcome.infra else f"{prefix}no completion reached the program"
        return replace(outcome, failure=FailureClass.INFRA_FAILURE, reason=reason)
    return _against(outcome, outcome.against, outcome.reason) if outcome.infra else outcome


def served(seal: Seal) -> bool:
    """Whether a completion has reached the program; for a resumed attempt, under this lease."""
    if seal.recorded and not seal.replayed and seal.steps == seal.recorded:
        return False
    return seal.steps > len({mark.idx for mark in seal.marks if mark.reason in NOT_DELIVERED})


def _cut_off(seal: Seal) -> set[int]:
    """The replies of the policy's own that the end of the attempt cut off; for a resumed attempt, under this lease."""
    cut = _with(seal, MarkReason.CUT_OFF) - _with(seal, MarkReason.AUXILIARY)
    return {idx for idx in cut if idx >= seal.recorded}


def _first(seal: Seal) -> bool:
    """Whether the policy was at its first reply. A program with a time-out of its own has requested that several times, and hangs by it. What a
    program requests after a reply was cut off comes too late."""
    if not (cut := _cut_off(seal)):
        return seal.steps <= seal.recorded + 1
    late = {idx for idx in _with(seal, MarkReason.UNDELIVERED) if idx > min(cut)}
    aside = late | _with(seal, MarkReason.CUT_OFF) | _with(seal, MarkReason.AUXILIARY)
    return seal.steps - seal.recorded <= sum(idx >= seal.recorded for idx in aside)


def _with(seal: Seal, reason: MarkReason) -> set[int]:
    return {mark.idx for mark in seal.marks if mark.reason == reason}


def _against(outcome: AttemptOutcome, failure: FailureClass, reason: str | None) -> AttemptOutcome:
    return replace(outcome, failure=failure, reason=reason, resumable=False)


def replayed(outcome: AttemptOutcome, seal: Seal) -> AttemptOutcome:
    """An outcome checked against the record that its session had to replay. A diverged attempt does not count, and a new attempt starts. An
    infrastructure failure in the middle of a replay is not evidence of divergence."""
    if not seal.recorded:
        return outcome
    divergence = seal.parted
    if divergence is None and seal.missing and not outcome.infra:
        divergence = f"it ended without repeating {seal.missing} of {seal.recorded} recorded requests"
    if divergence is not None:
        reason = f"replay: {divergence}"
        return replace(
            outcome,
            failure=FailureClass.INFRA_FAILURE,
            reason=reason,
            resumable=False,
            replay=Replay.DIVERGED,
        )
    return replace(outcome, replay=Replay.INTERRUPTED if seal.missing else Replay.CONTINUED)


def leaves(error: Exception) -> list[Exception]:
    """The exceptions in an exception group, itself if it is none."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves(inner)]


def root_cause(error: Exception) -> Exception:
    """The exception that represents an exception group: the platform's before the policy's, the first of its kind."""

    def priority(leaf: Exception) -> tuple[bool, bool]:
        outcome = outcome_of_quietly(leaf)
        return not outcome.infra, outcome.reachable

    return min(leaves(error), key=priority)


def outcome_of_quietly(error: Exception) -> AttemptOutcome:
    """Like `outcome_of`, without a log line."""
    known = isinstance(error, (RolloutFailure, PolicyFault, SandboxError, ImageRefused))
    return outcome_of(error) if known else AttemptOutcome(failure=FailureClass.INFRA_FAILURE, reachable=True)
