"""No message of ours is too long for our own reader: every text of every message has a bound at its sender, within the reader's limit."""

from typing import Any

import msgspec
import pytest
from scaffolds.base import MAX_VERSION

from orchestrator.bus import subjects
from orchestrator.contracts import limits
from orchestrator.contracts.events import (
    EVENTS,
    ArtifactFile,
    Event,
    PolicyPublished,
    StepMark,
    StepRoutes,
    StepTimings,
    SubmissionAnswered,
    TaskSubmitted,
    TestResult,
    ToolCallTimed,
    decode,
    decode_written,
    encode,
)
from orchestrator.contracts.marks import MarkReason
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import Purpose, SlotPhase, SubmissionStatus
from orchestrator.contracts.vetting import Vetting
from orchestrator.publish import MAX_LABEL, PublishOptions
from orchestrator.settings.sampling import SAMPLING_KEYS
from orchestrator.tasks.artifacts import SHOWN_PATH
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.verdict import MAX_NAME
from sandboxes.artifacts import MAX_PATH
from sandboxes.base import Lost, RefusedReason

NAME, HEX = 32, 64
CONTENT = limits.MAX_PAYLOAD
"""The bus takes no longer message, and its sender learns that."""
NEVER = 0
"""No code of ours sends it."""
BOUNDS = {
    "TaskSubmitted.submission": limits.MAX_SUBMISSION,
    "TaskSubmitted.scaffold": limits.MAX_PATH,
    "TaskSubmitted.label": limits.MAX_LABEL,
    "TaskSubmitted.sampling.keys": max(map(len, SAMPLING_KEYS)),
    "RolloutAssigned.run": NAME,
    "VerifyAssigned.run": NAME,
    "StepRecorded.run": NAME,
    "StepRecorded.delta": CONTENT,
    "StepRecorded.action": CONTENT,
    "StepRecorded.logprobs": CONTENT,
    "StepRecorded.prompt": CONTENT,
    "StepRecorded.chain_sha": HEX,
    "StepRecorded.row_sha": HEX,
    "StepRecorded.prompt_sha": HEX,
    "StepRecorded.request_digest": HEX,
    "StepRecorded.sampling.keys": max(map(len, (*SAMPLING_KEYS, "repetition_stop"))),
    "StepRecorded.agent": limits.MAX_AGENT,
    "StepRecorded.branch_reason": limits.MAX_BRANCH_REASON,
    "StepRecorded.marks": max(map(len, MarkReason)),
    "StepRecorded.weights": len(f"{2**31}:") + HEX,
    "StepRoutes.ids": CONTENT,
    "StepRoutes.sha": HEX,
    "StepMark.reason": max(map(len, MarkReason)),
    "ToolCallTimed.name": limits.MAX_TOOL,
    "ArtifactFile.path": max(MAX_PATH, SHOWN_PATH + 1 + max(len(f" ({lost.value})") for lost in Lost)),
    "ArtifactFile.body": CONTENT,
    "ArtifactFile.why": max(max(len(reason.value) for reason in RefusedReason), limits.MAX_REASON),
    "ArtifactFile.parts": HEX,
    "RolloutFinished.run": NAME,
    "RolloutFinished.reason": limits.MAX_REASON,
    "RolloutFinished.digest": HEX,
    "RolloutFinished.answer": CONTENT,
    "RolloutFinished.listing": HEX,
    "RolloutFinished.log": limits.MAX_KEPT_LOG,
    "RolloutFinished.scaffold": limits.MAX_PATH,
    "RolloutFinished.scaffold_version": MAX_VERSION,
    "RolloutFinished.scaffold_sha": HEX,
    "RolloutFinished.spent.keys": max(map(len, SlotPhase)),
    "RolloutFinished.ungradable": limits.MAX_REASON,
    "RolloutFinished.system": limits.MAX_SYSTEM,
    "TestResult.name": CONTENT,
    "TestResult.message": CONTENT,
    "VerdictReached.run": NAME,
    "VerdictReached.reason": limits.MAX_REASON,
    "VerdictReached.log": limits.MAX_KEPT_LOG,
    "VerdictReached.process.keys": MAX_NAME,
    "VerdictReached.components.keys": MAX_NAME,
    "PolicyPublished.run": NAME,
    "PolicyPublished.path": limits.MAX_PATH,  # Linux opens no longer one
    "PolicyPublished.manifest_sha": HEX,
    "SubmissionAnswered.submission": limits.MAX_SUBMISSION,
    "SubmissionAnswered.reason": limits.MAX_REJECTION,
    "DeadLettered.stream": NEVER,
    "DeadLettered.subject": NEVER,
    "DeadLettered.schema": NEVER,
    "DeadLettered.reason": NEVER,
    "DeadLettered.body": NEVER,
    "Vetting.sha256": HEX,
    "Vetting.provider": 64,
}


def texts(struct: type[msgspec.Struct]) -> dict[str, int | None]:
    """The most characters that a reader takes of each text of a message, by its name; None: any number."""
    schema = msgspec.json.schema(struct)
    fields = schema["$defs"][struct.__name__]["properties"]
    found: dict[str, int | None] = {}
    for name, field in fields.items():
        for place, text in _texts(name, field, schema["$defs"]):
            found[f"{struct.__name__}.{place}"] = text.get("maxLength")
    return found


def _texts(place: str, schema: dict[str, Any], parts: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The texts of a field. The texts of a struct in it are those of that struct, which must be among `PARTS`."""
    if part := schema.get("$ref", "").rpartition("/")[2]:
        known = "enum" in parts[part] or part in {struct.__name__ for struct in PARTS}
        assert known, f"{place} holds a {part}: name it in PARTS, and its texts in BOUNDS"
    found = [(place, schema)] if schema.get("type") == "string" else []
    inners = [*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")]
    for inner in inners:
        found += _texts(place, inner, parts) if isinstance(inner, dict) else []
    if isinstance(names := schema.get("propertyNames"), dict):
        found.append((f"{place}.keys", {"type": "string", **names}))
    return found


PARTS = (StepRoutes, StepMark, StepTimings, ToolCallTimed, ArtifactFile, TestResult, VersionSpan, Vetting)


@pytest.mark.parametrize("struct", [*EVENTS.values(), *PARTS], ids=lambda struct: struct.__name__)
def test_every_text_of_a_message_has_a_bound_at_its_sender_within_the_limit_of_its_reader(
    struct: type[msgspec.Struct],
) -> None:
    taken = texts(struct)
    known = {name: most for name, most in BOUNDS.items() if name.partition(".")[0] == struct.__name__}
    assert taken.keys() == known.keys(), "name what bounds the text where it is sent"
    for name, most in taken.items():
        assert most is not None, f"{name} has no limit: give it one of contracts.events"
        assert known[name] <= most, f"{name} may have {known[name]} characters, its reader takes {most}"


WRITTEN: list[Event] = [
    PolicyPublished(
        run="r" * NAME,
        version=2**31 - 1,
        path="/" + "ж" * 4095,
        manifest_sha="f" * HEX,
        batch_no=None,
        revision=1,
    ),
    SubmissionAnswered(
        submission="s" * limits.MAX_SUBMISSION,
        status=SubmissionStatus.REJECTED,
        reason="ж" * limits.MAX_REJECTION,
    ),
]


@pytest.mark.parametrize("event", WRITTEN, ids=lambda event: type(event).__name__)
def test_a_message_of_the_longest_texts_is_read_back(event: Event) -> None:
    assert decode(encode(event), event.schema(), type(event)) == event


@pytest.mark.parametrize("purpose", Purpose)
def test_a_task_with_the_longest_label_and_domain_is_published_under_an_id_that_intake_takes(
    purpose: Purpose,
) -> None:
    task = Task.from_files({"task.toml": b"", "instruction.md": b"x", "tests/test.sh": b"exit 0\n"})
    options = PublishOptions(purpose=purpose, label="l" * MAX_LABEL, domain="d" * NAME, scaffold="/s" * 2000)
    _, event = options.event(task)
    read = decode_written(encode(event), event.schema(), TaskSubmitted)
    assert read.submission is not None and subjects.check_submission(read.submission) == options.submission(
        task
    )
    assert task.content_hash[:20] in read.submission
