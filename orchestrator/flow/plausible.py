"""What a result or a verdict cannot say, whoever sends it: MessageError, one sentence. A runner that is mistaken or not one of ours changes
nothing by it: its message becomes a dead letter.

Whether the lease is current is not looked at here: that is the transaction's business, where late and forged ones are counted.
"""

import math
import re
from collections.abc import Iterator

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import (
    PHASES,
    RolloutAssigned,
    RolloutFinished,
    VerdictReached,
    VerifyAssigned,
)
from orchestrator.contracts.ids import unb64
from orchestrator.contracts.states import FailureClass
from orchestrator.flow.crossing import LIMITS, TOTAL_BYTES

YEAR = 366 * 86400.0
SMALL, INTEGER = 2**15 - 1, 2**31 - 1
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?")


def check_result(event: RolloutFinished) -> None:
    """Raise MessageError for what no sealed session announces."""
    for flaw in _of_result(event):
        raise MessageError(f"RolloutFinished: {flaw}")


def check_verdict(event: VerdictReached) -> None:
    """Raise MessageError for what no verification comes to."""
    for flaw in _of_verdict(event):
        raise MessageError(f"VerdictReached: {flaw}")


def check_assignment(event: RolloutAssigned | VerifyAssigned, run: str) -> None:
    """Raise MessageError for work that is not this run's, or nobody's."""
    name = type(event).__name__
    if event.run != run:
        raise MessageError(f"{name}: it is work of the run {event.run!r:.80}, on the subject of {run!r}")
    for flaw in _of_lease(event):
        raise MessageError(f"{name}: {flaw}")


def _of_result(event: RolloutFinished) -> Iterator[str]:
    yield from _of_lease(event)
    if not 0 <= event.steps <= INTEGER:
        yield f"steps is {event.steps}, it must not be negative"
    if event.last_idx != event.steps - 1:
        yield f"last_idx is {event.last_idx} after {event.steps} steps: a session counts them without gaps"
    if not _DIGEST.fullmatch(event.digest):
        yield "digest is not the hex of a sha256"
    for name, value in (("agent_s", event.agent_s), ("queued_s", event.queued_s)):
        yield from _seconds(name, value)
    for phase, value in event.spent.items():
        if phase not in PHASES:
            yield f"spent has {phase!r:.40}, the phases are {', '.join(PHASES)}"
        yield from _seconds(f"spent on {phase!r:.40}", value)
    for mark in event.marks:
        if not 0 <= mark.idx < event.steps:
            yield f"step {mark.idx} is marked, of {event.steps} steps"
    yield from _of_artifacts(event)
    for call in event.tool_calls:
        if not (0 <= call.step <= INTEGER and 0 <= call.call <= SMALL):
            yield f"there is no tool call {call.call} of step {call.step}"
        yield from _seconds("a tool call's start", call.start)
        yield from _seconds("a tool call's end", call.end)


def _of_artifacts(event: RolloutFinished) -> Iterator[str]:
    total = 0
    for file in event.artifacts:
        # An agent may call its files as it likes; only where they would lie is looked at.
        if "\0" in file.path or any(part in ("", ".", "..") for part in file.path.split("/")):
            yield f"an artifact lies at {file.path!r:.120}, which is not below the work directory"
        try:
            total += len(unb64(file.body)) if file.body is not None else 0
        except ValueError as error:
            yield f"an artifact is not base64: {error}"
        if not 0 <= file.mode <= 0o777:
            yield f"an artifact has mode {file.mode:o}"
    if len({file.path for file in event.artifacts}) < len(event.artifacts):
        yield "an artifact comes twice"
    if len(event.artifacts) > LIMITS.files or total > TOTAL_BYTES:
        yield f"{len(event.artifacts)} artifacts of {total:,} bytes are more than may cross"


def _of_verdict(event: VerdictReached) -> Iterator[str]:
    yield from _of_lease(event)
    if event.failure_class != FailureClass.COMPLETED and event.reward is not None:
        yield f"a verification that ended as {event.failure_class!r:.40} has no reward, and it says {event.reward}"
    if event.exit_code is not None and abs(event.exit_code) > INTEGER:
        yield f"exit_code is {event.exit_code}"
    yield from _seconds("verify_s", event.verify_s)


def _of_lease(event: RolloutFinished | VerdictReached | RolloutAssigned | VerifyAssigned) -> Iterator[str]:
    if not (0 < event.rollout < 2**63 and 0 < event.attempt <= SMALL and 0 < event.epoch <= INTEGER):
        yield f"there is no rollout {event.rollout}, attempt {event.attempt}, epoch {event.epoch}"


def _seconds(name: str, value: float) -> Iterator[str]:
    if not (math.isfinite(value) and 0.0 <= value <= YEAR):
        yield f"{name} is {value}, it must be seconds from 0 on"
