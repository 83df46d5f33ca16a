"""Checks for invalid results and verdicts from any sender: MessageError, one sentence. A faulty or foreign runner cannot change data this way:
its message becomes a dead letter.

The lease is not checked here: the transaction does that, and counts late and forged messages.
"""

import math
import re
import stat
from collections.abc import Iterator

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import (
    ArtifactFile,
    RolloutAssigned,
    RolloutFinished,
    VerdictReached,
    VerifyAssigned,
)
from orchestrator.contracts.ids import unb64
from orchestrator.contracts.limits import MAX_SYSTEM
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import FailureClass, Left, SlotPhase
from orchestrator.tasks.artifact_modes import TYPES, is_change, type_of
from orchestrator.tasks.artifacts import MAX_NOTES, is_note, size_of
from orchestrator.tasks.collected import ANSWER_PATH, COLLECTED
from orchestrator.tasks.key_values import MAX_STEPS
from orchestrator.tasks.verdict import component_flaws, process_flaws
from sandboxes.artifacts import stays_in_image
from sandboxes.base import ArtifactLimits
from sandboxes.elsewhere import lies_elsewhere

YEAR = 366 * 86400.0
SMALL, INTEGER = 2**15 - 1, 2**31 - 1
_PHASES = frozenset(SlotPhase)
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_result(event: RolloutFinished, limits: ArtifactLimits) -> None:
    """Raise MessageError for values that no sealed session announces, and for artifacts over a run's limits."""
    for flaw in _of_result(event, limits):
        raise MessageError(f"RolloutFinished: {flaw}")


def check_verdict(event: VerdictReached) -> None:
    """Raise MessageError for values that no verification produces."""
    for flaw in _of_verdict(event):
        raise MessageError(f"VerdictReached: {flaw}")


def check_assignment(event: RolloutAssigned | VerifyAssigned, run: str) -> None:
    """Raise MessageError for work that is not this run's, or that is invalid."""
    name = type(event).__name__
    if event.run != run:
        raise MessageError(
            f"{name}: it is work of the run {quoted(event.run)}, on the subject of {quoted(run)}"
        )
    for flaw in _of_lease(event):
        raise MessageError(f"{name}: {flaw}")


def _of_result(event: RolloutFinished, limits: ArtifactLimits) -> Iterator[str]:
    yield from _of_lease(event)
    if not 0 <= event.steps <= INTEGER:
        yield f"steps is {event.steps}, it must not be negative"
    if event.last_idx != event.steps - 1:
        yield f"last_idx is {event.last_idx} after {event.steps} steps: a session counts them without gaps"
    if event.digest is not None and not _DIGEST.fullmatch(event.digest):
        yield "digest is not the hex of a sha256"
    for name, value in (
        ("agent_s", event.agent_s),
        ("queued_s", event.queued_s),
        ("generation_s", event.generation_s),
        ("waiting_s", event.waiting_s),
    ):
        if value is not None:
            yield from _seconds(name, value)
    if event.system is not None and len(event.system) > MAX_SYSTEM:
        yield f"system has {len(event.system)} characters, it may have {MAX_SYSTEM}"
    for phase, value in event.spent.items():
        if phase not in _PHASES:
            yield f"spent has {quoted(phase)}, the phases are {', '.join(SlotPhase)}"
        yield from _seconds(f"spent on {phase!r:.40}", value)
    for mark in event.marks:
        if not 0 <= mark.idx < event.steps:
            yield f"step {mark.idx} is marked, of {event.steps} steps"
    yield from _of_artifacts(event, limits)
    for call in event.tool_calls:
        if not (0 <= call.step <= INTEGER and 0 <= call.call <= SMALL):
            yield f"tool call {call.call} of step {call.step} does not exist"
        yield from _seconds("a tool call's start", call.start)
        yield from _seconds("a tool call's end", call.end)


def _of_artifacts(event: RolloutFinished, limits: ArtifactLimits) -> Iterator[str]:
    notes = sum(map(is_note, event.artifacts))
    if notes > MAX_NOTES * MAX_STEPS:
        yield f"{notes:,} notes are more than the kinds of what does not cross"
    if (files := len(event.artifacts) - notes) > limits.files:
        yield f"{files:,} artifacts are more than the {limits.files:,} that may cross"
    total = 0
    for file in event.artifacts:
        # An agent may name its files freely; only their location is checked.
        outside = any(file.path.startswith(f"{place}/") for place in COLLECTED)
        answer = file.kind is Left.ANSWER and file.path == ANSWER_PATH
        outside = answer or (
            (outside or lies_elsewhere(file.path)) and file.kind in (Left.COLLECTED, Left.BEHIND)
        )
        relative = file.path[1:] if outside else file.path
        if "\0" in relative or any(part in ("", ".", "..") for part in relative.split("/")):
            yield f"an artifact lies at {quoted(file.path)}, which is not below the work directory"
        try:
            total += size_of(file)
        except ValueError as error:
            yield f"an artifact is not base64: {error}"
        if not 0 <= (file.mode ^ type_of(file) if is_change(file) else file.mode) <= 0o777:
            yield f"an artifact has mode {file.mode:o}"
        if not 0 <= file.step < MAX_STEPS:
            yield f"an artifact is of step {file.step}"
        yield from _of_kind(file, limits)
    if len({(file.step, file.path) for file in event.artifacts}) < len(event.artifacts):
        yield "an artifact comes twice"
    if total > limits.total_bytes:
        yield f"{len(event.artifacts):,} artifacts of {total:,} bytes are more than may cross"


def _of_kind(file: ArtifactFile, limits: ArtifactLimits) -> Iterator[str]:
    if file.kind is Left.BEHIND and file.body is not None:
        yield "an artifact stayed behind and has a body"
    elif file.parts and (file.body is not None or file.kind not in (Left.FILE, Left.COLLECTED)):
        yield f"the artifact at {quoted(file.path)} has blobs and a body, or is not a file"
    elif (wrong := next((sha for sha in file.parts if not _DIGEST.fullmatch(sha)), None)) is not None:
        yield f"an artifact names the blob {quoted(wrong)}, which is not a sha256 in 64 digits of 0-9 and a-f"
    elif not 0 <= file.size <= limits.total_bytes:
        yield f"an artifact has {file.size} bytes"
    elif file.kind is Left.COLLECTED and (file.deleted or not file.path.startswith("/")):
        yield f"a collected artifact lies at {quoted(file.path)}, or has no body"
    elif is_change(file) and (flaw := _flaw_of_change(file)) is not None:
        yield flaw
    elif file.kind is Left.ANSWER and (file.body is None or file.path != ANSWER_PATH):
        yield f"the answer of a step lies at {quoted(file.path)}, or has no body"
    elif file.kind == Left.LINK and (file.body is None or not stays_in_image(file.path, _target(file.body))):
        yield f"the link at {quoted(file.path)} leads out of the work directory"
    elif file.kind is Left.DIRECTORY and file.body != "":
        yield "an artifact is a directory and has a body"


def _flaw_of_change(file: ArtifactFile) -> str | None:
    """A statement about a change in one of an image's places outside of the work directory that no runner makes."""
    kind = type_of(file)
    if kind not in TYPES:
        return f"the artifact at {quoted(file.path)} has mode {file.mode:o}"
    if kind == 0:
        return None
    if file.parts or file.body is None or (kind != stat.S_IFLNK and file.body):
        return f"the artifact at {quoted(file.path)} is not a file and has other content than a link has"
    if kind == stat.S_IFLNK and not stays_in_image(file.path, _target(file.body)):
        return f"the link at {quoted(file.path)} leads out of the places that programs may write"
    return None


def _target(body: str) -> str:
    try:
        return unb64(body).decode()
    except ValueError:  # also bytes that are not text
        return ""


def _of_verdict(event: VerdictReached) -> Iterator[str]:
    yield from _of_lease(event)
    if event.failure_class is not FailureClass.COMPLETED and event.reward is not None:
        yield f"a verification that ended as {quoted(event.failure_class)} has no reward, and it says {event.reward}"
    if event.exit_code is not None and abs(event.exit_code) > INTEGER:
        yield f"exit_code is {event.exit_code}"
    if not 0 <= event.programs <= INTEGER:
        yield f"programs is {event.programs}"
    yield from (f"process: {flaw}" for flaw in process_flaws(event.process or {}))
    yield from (f"components: {flaw}" for flaw in component_flaws(event.components or {}))
    yield from _seconds("verify_s", event.verify_s)


def _of_lease(event: RolloutFinished | VerdictReached | RolloutAssigned | VerifyAssigned) -> Iterator[str]:
    if not (0 < event.rollout < 2**63 and 0 < event.attempt <= SMALL and 0 < event.epoch <= INTEGER):
        yield f"rollout {event.rollout}, attempt {event.attempt}, epoch {event.epoch} does not exist"


def _seconds(name: str, value: float) -> Iterator[str]:
    if not (math.isfinite(value) and 0.0 <= value <= YEAR):
        yield f"{name} is {value}, it must be seconds from 0 on"
