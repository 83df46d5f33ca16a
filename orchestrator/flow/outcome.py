"""How an attempt ended, as data: the one place where exceptions become failure classes."""

import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from scaffolds.base import PolicyFault

from orchestrator.contracts.errors import RolloutFailure, ServiceError
from orchestrator.contracts.states import FailureClass, Replay
from orchestrator.gateway_client import BudgetExhausted, GatewayAway, GatewayDrains, Seal
from orchestrator.log import get
from orchestrator.pool.clean import clean
from sandboxes.base import ImageRefused, SandboxError, SandboxFull, SandboxSpent

log = get(__name__)

LOG_BYTES = 4096
REASON_CHARACTERS = 1000
UNSEEN = frozenset({"auxiliary", "undelivered"})  # marks of steps that cannot have moved the program


@dataclass(frozen=True, slots=True)
class Outcome:
    """`answer` is the final message, None without one. `log` is for people. `scaffold_error`: not foreseen by anybody, to be counted.
    `own_word`: how a program that ran to its end, or used up its sandbox, was classified; a failed sandbox or gateway is never that.
    `platform`: what the runner itself saw fail while the program ran, empty if nothing. `resumable`: an infrastructure failure that leaves
    the recorded steps worth going on from. `replay`: what became of a resume, None if it was none.

    Texts are made fit for a message and for Postgres.
    """

    failure: FailureClass
    reason: str = ""
    answer: str | None = None
    log: str = ""
    scaffold_error: bool = False
    own_word: bool = False  # the program's own account of its end, not the platform's
    platform: str = ""
    resumable: bool = False
    replay: Replay | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", clean(self.reason)[:REASON_CHARACTERS])
        object.__setattr__(self, "log", clean(self.log)[-LOG_BYTES:])
        if self.answer is not None:
            object.__setattr__(self, "answer", clean(self.answer))

    @property
    def infra(self) -> bool:
        return self.failure is FailureClass.INFRA_FAILURE


async def captured(work: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """What `work` returns, or what its exception means. ServiceError (for a person to mend), SandboxFull and GatewayDrains (the work never
    began) and cancellation pass through."""
    try:
        return await work()
    except (ServiceError, SandboxFull, GatewayDrains):
        raise
    except Exception as error:  # noqa: BLE001 - every failure of a rollout is data; unforeseen ones are logged and counted
        return outcome_of(culprit(error))


def outcome_of(error: Exception) -> Outcome:
    """The failure class of one exception, by vocabulary. What nobody foresaw is never held against the policy."""
    match error:
        case BudgetExhausted():
            return Outcome(FailureClass.POLICY_FAILURE, error.which)
        case GatewayAway():
            return Outcome(error.failure, str(error), resumable=True)
        case RolloutFailure():
            return Outcome(error.failure, str(error))
        case PolicyFault():
            return Outcome(FailureClass.POLICY_FAILURE, str(error))
        case SandboxSpent():  # what its programs did: the policy's from the first served step on, the scaffold's before (`judged`)
            return Outcome(FailureClass.INFRA_FAILURE, f"sandbox: {error}", own_word=True)
        case SandboxError():
            return Outcome(FailureClass.INFRA_FAILURE, f"sandbox: {error}", resumable=True)
        case ImageRefused():  # the next attempt meets the same image: its group ends as a dead letter that says so
            return Outcome(FailureClass.INFRA_FAILURE, f"task: {error}")
    last = traceback.format_exception_only(error)[-1].strip()
    log.error("scaffold.error", error=last, exc_info=error)
    return Outcome(
        FailureClass.INFRA_FAILURE, f"scaffold: {type(error).__name__}", log=last, scaffold_error=True
    )  # fmt: skip


def judged(outcome: Outcome, seal: Seal) -> Outcome:
    """A program's own word held against what the gateway saw of its session.

    What a program does once it has had completions is the policy's doing: its commands run as the program's own user and can end it, or write
    what it leaves behind. So from the first served step on, only the platform's own evidence (a call that the gateway failed, a gateway
    that was silent) makes an infrastructure failure; an exit code does not. Nor does exit code 0 make a success of an attempt in which no
    completion reached the program, or the last one that it asked for was never served.
    """
    if not outcome.own_word:
        return outcome
    completed = outcome.failure is FailureClass.COMPLETED
    if seal.exhausted and (outcome.answer is None or not completed):
        return replace(outcome, failure=FailureClass.POLICY_FAILURE, reason=seal.exhausted)
    if not outcome.infra and not completed:
        return outcome
    if failed := outcome.platform or seal.failing:
        return replace(
            outcome, failure=FailureClass.INFRA_FAILURE, reason=f"gateway: {failed}", resumable=True
        )
    served = seal.steps > len({mark.idx for mark in seal.marks if mark.reason in UNSEEN})
    if completed and not served:
        return replace(
            outcome, failure=FailureClass.INFRA_FAILURE, reason="no completion reached the program"
        )
    if not completed and served:
        return replace(outcome, failure=FailureClass.POLICY_FAILURE)
    return outcome


def replayed(outcome: Outcome, seal: Seal) -> Outcome:
    """An outcome held against the record that its session had to serve again: what did not go the recorded way counts for nothing, and
    another attempt begins anew. An infrastructure failure in the middle of a replay says nothing about it."""
    if not seal.recorded:
        return outcome
    parted = seal.parted
    if parted is None and seal.missing and not outcome.infra:
        parted = f"it ended and had not asked again for {seal.missing} of {seal.recorded} recorded steps"
    if parted is not None:
        reason = f"replay: {parted}"
        return replace(
            outcome,
            failure=FailureClass.INFRA_FAILURE,
            reason=reason,
            resumable=False,
            replay=Replay.DIVERGED,
        )
    return replace(outcome, replay=Replay.INTERRUPTED if seal.missing else Replay.CONTINUED)


def culprit(error: Exception) -> Exception:
    """The one exception that a group of them stands for: the platform's before the policy's, the first of its kind."""
    if not isinstance(error, ExceptionGroup):
        return error
    leaves = [culprit(inner) for inner in error.exceptions]
    return min(leaves, key=lambda leaf: not outcome_of_quietly(leaf).infra)


def outcome_of_quietly(error: Exception) -> Outcome:
    """As `outcome_of`, without a line in the log."""
    known = isinstance(error, (RolloutFailure, PolicyFault, SandboxError, ImageRefused))
    return outcome_of(error) if known else Outcome(FailureClass.INFRA_FAILURE)
