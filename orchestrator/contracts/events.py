"""Every message on the bus. Names are past tense; producer → consumer are named. Additive only: never remove or retype a field.

Bodies are JSON, readable with `nats sub`; token arrays are base64 of little-endian int32 / float32. The header
`Penstock-Schema: <Name>/<version>` names the struct. Between our own processes a reader accepts its own version and every later version, and
ignores unknown fields. A message published by people (`decode_written`) may contain only keys that its reader knows, at any version: a new key
comes with a new version, and an older reader refuses it instead of ignoring it.

A missing text is None and is not written. Older senders write "" for it: `__post_init__` reads that as None.
"""

import codecs
import json
from difflib import get_close_matches
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.limits import (
    MAX_LABEL,
    MAX_LOG,
    MAX_NAME_LENGTH,
    MAX_PATH,
    MAX_PAYLOAD,
    MAX_SENTENCE,
)
from orchestrator.contracts.marks import MAIN_AGENT, Finish, ParseStatus
from orchestrator.contracts.members import read, without_empty
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import FailureClass, Left, Purpose, Replay, StepKind, SubmissionStatus
from orchestrator.contracts.vetting import Vetting

# Every text has a limit, which its reader checks; its sender cuts before.
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)]
"""A name or word that Penstock or its operator chose: a run, a reason of a mark, an agent's path, hex of a sha256."""
Label = Annotated[str, msgspec.Meta(max_length=MAX_LABEL)]
Sentence = Annotated[str, msgspec.Meta(max_length=MAX_SENTENCE)]
Path = Annotated[str, msgspec.Meta(max_length=MAX_PATH)]
Log = Annotated[str, msgspec.Meta(max_length=MAX_LOG)]
Payload = Annotated[str, msgspec.Meta(max_length=MAX_PAYLOAD)]
"""Content, or a text whose own check has a better sentence."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every bus message."""

    @classmethod
    def schema(cls) -> str:
        """The value of the schema header, such as `StepRecorded/1`."""
        return f"{cls.__name__}/1"


class TaskSubmitted(Event, frozen=True, kw_only=True):
    """Signals that a user wants one group. users → orchestrator.

    `task` is the packed task directory: {"files": {path: text}, "files_b64": {path: base64}}.
    `submission` identifies it (absent: sha256 of the body): publishing it again is a no-op.
    """

    task: dict[str, Any]
    submission: Payload | None = None
    purpose: Purpose = Purpose.TRAIN
    scaffold: Payload | None = None
    group_size: int | None = None
    label: Payload | None = None  # the evaluation or recording to which this belongs
    version: int | None = None  # pinned policy version (eval)
    sampling: dict[Name, float] | None = None  # overrides of the run's sampling parameters (eval, record)
    vetting: Vetting | None = None  # the level that `penstock tasks vet` gave exactly this task


class RolloutAssigned(Event, frozen=True, kw_only=True):
    """Signals that a rollout may be leased at this epoch. orchestrator (outbox) → runner."""

    run: Name
    rollout: int
    attempt: int
    epoch: int


class VerifyAssigned(Event, frozen=True, kw_only=True):
    """Signals that a finished rollout may be verified at this epoch. orchestrator (outbox) → verifier runner."""

    run: Name
    rollout: int
    attempt: int
    epoch: int


class StepTimings(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Seconds of one call. Concurrent calls overlap, so sums over the steps of an attempt do not describe the attempt.

    `generation`: its tokens were generated. `queue`: all its other time until its reply. `first_byte`: the part of the generation until the first
    token. `gap`: time since the previous step without any call of the session in flight; gaps do not overlap. `ended`: when its reply was ready,
    seconds since 1970 by the database's clock, so that the call arrived at ended - generation - queue; 0: not known. The gateway prepares a large
    request before it is a call: that time is in the `queued_s` of the attempt, and in no step's times."""

    queue: float = 0.0
    first_byte: float = 0.0
    generation: float = 0.0
    gap: float = 0.0
    ended: float = 0.0


class StepRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of a mixture that a step's tokens were sent to (trajectory.routes). `ids` is base64 of [n, layers, top_k], `width` bytes
    each, of the positions from `start` on; `sha` (hex) is trajectory.routes.routes_sha."""

    start: int
    layers: int
    top_k: int
    width: int
    ids: Payload
    sha: Name


MAX_WEIGHTS: Final = 64
"""Digests of weights in one step: as many weight syncs may interrupt an action."""


class StepRecorded(Event, frozen=True, kw_only=True):
    """Signals that one completion happened: the token delta, never the whole context. gateway (journal) → orchestrator.

    full = state + action; state = parent.full[:keep_len] + delta; a root's parent is its prompt (base64 ids, content-addressed).
    len(action) == len(logprobs) == sum of the spans. Every array is base64 little-endian.
    """

    run: Name
    rollout: int
    attempt: int
    epoch: int
    idx: int
    kind: StepKind
    parent: int | None
    root: int
    keep_len: int
    state_len: int
    full_len: int
    delta: Payload
    action: Payload
    logprobs: Payload
    spans: list[VersionSpan]
    chain_sha: Name  # hex
    row_sha: Name  # hex
    sampling: dict[Name, Any]
    finish: Finish
    parse: ParseStatus
    agent: Name = MAIN_AGENT
    prompt: Payload | None = None
    prompt_sha: Name | None = None  # hex
    timings: StepTimings = StepTimings()
    appended: list[dict[str, Any]] = []  # the messages that this request added
    reply: dict[str, Any] = {}  # the parsed action: content, reasoning, tool_calls
    request_digest: Name | None = None  # hex
    # Why this is not a plain continuation. Older gateways send up to 200 characters.
    branch_reason: Label | None = None
    # `near`, `turn`, `field`, `recorded`, `sent`: the first difference to the nearest step.
    branch: dict[str, Any] | None = None
    marks: list[Name] = []  # as known when the step was recorded (StepMark)
    routes: StepRoutes | None = None  # with routing replay only
    # `version:digest` of the weights that generated it, where the rollout server tells digests.
    weights: list[Name] = []

    def __post_init__(self) -> None:
        without_empty(self, "request_digest")


class StepMark(msgspec.Struct, frozen=True):
    """A step that must not train, or not always. `reason` is a `MarkReason` of the sender: a reader keeps one that it does not know yet, so the step
    still does not train."""

    idx: int
    reason: Name


class ToolCallTimed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One tool execution as the runner saw it; seconds since the attempt's start, bytes of output."""

    step: int
    call: int
    name: Name
    start: float
    end: float
    exit: int | None = None
    bytes: int = 0


class ArtifactFile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One file for verification, relative to the work directory; `body` is base64. A file's content may lie in blobs instead: `parts` are their hex
    sha256, in order, `size` the bytes of all. With neither: deleted.

    `kind`: a file; a link, with its target as the body; a directory without files, or with permissions other than 755;
    a path that was not copied (`behind`), with the reason in `why`: the tests find nothing there; a file outside of the work directory
    (`collected`), with its absolute path. It may also be a link, a directory or a deletion (tasks.artifact_modes): the type in `mode` says
    so. `step`: after which step of a task with several; from 0.
    """

    path: Path
    body: Payload | None
    mode: int = 0o644
    kind: Left = Left.FILE
    why: Sentence | None = None
    step: int = 0
    parts: list[Name] = []
    size: int = 0

    @property
    def deleted(self) -> bool:
        """Whether the agent deleted it, or it stayed behind."""
        return self.body is None and not self.parts

    def __post_init__(self) -> None:
        without_empty(self, "why")


class RolloutFinished(Event, frozen=True, kw_only=True):
    """Signals the end of one attempt, with what its sealed session announced. runner (journal) → orchestrator.

    `digest` (hex) is sha256 of all chain_sha in idx order; the rollout is complete only when every announced step is in the data pool.
    `resumable`: an infrastructure failure after which the recorded steps can be replayed. `replay` and `replayed` (steps) give the result of a
    resume; None and 0 for an attempt that was not resumed. `spent`: the runner's seconds by SlotPhase.
    `ungradable`: why nothing that the agent left can be graded, so that its verdict is 0; None: gradable. `generation_s`: seconds in which at
    least one completion was generated, including replayed ones. `listing`: the hex sha256 of blobs that hold `artifacts` as JSON, for lists that are
    too long for a message. `waiting_s`: seconds in which a completion waited and none was generated
    (trajectory.waiting). None: not known. `system`: the image or the base system of its sandbox (sandboxes.system).
    """

    run: Name
    rollout: int
    attempt: int
    epoch: int
    failure_class: FailureClass
    reason: Sentence | None = None
    steps: int = 0
    last_idx: int = -1
    digest: Name | None = None
    marks: list[StepMark] = []
    answer: Payload | None = None
    artifacts: list[ArtifactFile] = []
    listing: list[Name] = []
    tool_calls: list[ToolCallTimed] = []
    log: Log = ""
    agent_s: float = 0.0  # wall time of the attempt without platform queueing
    queued_s: float = 0.0  # waiting for gateway, rollout server or sandbox start
    scaffold: Path | None = None  # as the run's shares name it: a name, or where it lies
    scaffold_version: Name | None = None
    scaffold_sha: Name | None = None
    resumable: bool = False
    replay: Replay | None = None
    replayed: int = 0
    spent: dict[Name, float] = {}
    ungradable: Sentence | None = None
    generation_s: float | None = None
    waiting_s: float | None = None
    system: Sentence | None = None

    def __post_init__(self) -> None:
        without_empty(
            self, "reason", "digest", "scaffold", "scaffold_version", "scaffold_sha", "ungradable", "system"
        )


class TestResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One test of the verifier."""

    __test__ = False

    name: Payload
    passed: bool
    message: Payload = ""


class VerdictReached(Event, frozen=True, kw_only=True):
    """Signals that a verifier ended. verifier runner (journal) → orchestrator.

    `reward` is in [0, 1] when `failure_class` is completed, else None: an infrastructure failure is never reward 0.
    """

    run: Name
    rollout: int
    attempt: int
    epoch: int
    failure_class: FailureClass
    reward: float | None
    reason: Sentence | None = None
    tests: list[TestResult] = []
    exit_code: int | None = None
    log: Log = ""
    verify_s: float = 0.0
    programs: int = 0  # the agent's programs that ran under the wrapper of untrusted programs
    left: bool = False  # no verdict, although the tests reach a verdict when the agent has left nothing
    # Scores of the task's process.json: a number, or one per step, in [-1, 1].
    process: dict[Name, float | list[float]] | None = None
    components: dict[Name, float] | None = None  # the named numbers of the task's reward.json

    def __post_init__(self) -> None:
        without_empty(self, "reason")


class PolicyPublished(Event, frozen=True, kw_only=True):
    """Signals a new policy version. trainer (outbox) → gateway, orchestrator. `revision` grows; an older one is a no-op."""

    run: Name
    version: int
    path: Path
    manifest_sha: Name
    batch_no: int | None
    revision: int


class SubmissionAnswered(Event, frozen=True, kw_only=True):
    """Signals the fate of one submission, once its row is committed. orchestrator → users (core NATS notice)."""

    submission: Label
    status: SubmissionStatus
    reason: Sentence | None = None
    earlier: bool = False  # it was answered before, and that answer remains valid

    def __post_init__(self) -> None:
        without_empty(self, "reason")


class DeadLettered(Event, frozen=True, kw_only=True):
    """Signals that a message could not be used. anyone → operators. `body` is base64 of the original."""

    stream: Name
    subject: Payload
    schema_: Payload | None = msgspec.field(name="schema", default=None)
    reason: Sentence | None = None
    deliveries: int = 1
    body: Payload = ""

    def __post_init__(self) -> None:
        without_empty(self, "schema_", "reason")


EVENTS: dict[str, type[Event]] = {
    cls.__name__: cls
    for cls in (
        TaskSubmitted, RolloutAssigned, VerifyAssigned, StepRecorded, RolloutFinished, VerdictReached,
        PolicyPublished, SubmissionAnswered, DeadLettered,
    )
}  # fmt: skip

E = TypeVar("E", bound=Event)


def encode(event: Event) -> bytes:
    """The JSON body of `event`."""
    return msgspec.json.encode(event)


def decode(body: bytes, schema: str | None, expected: type[E]) -> E:
    """Read a body as `expected`. A missing schema header means `expected`, version 1 (plain clients).

    Raises MessageError naming the schema, or the field that does not fit.
    """
    name, _, version = (schema or expected.schema()).partition("/")
    if name not in EVENTS:
        raise MessageError(f"unknown schema {quoted(schema)}; known: {', '.join(sorted(EVENTS))}")
    if name != expected.__name__ or not _counts(version):
        raise MessageError(
            f"schema {quoted(schema)} is not expected here: this subject carries {expected.schema()}"
        )
    try:
        return read(body, expected)
    except msgspec.MsgspecError as error:
        raise MessageError(f"{expected.__name__}: {error}") from error
    except RecursionError:
        raise MessageError(f"{expected.__name__}: its content is nested too deeply") from None


def decode_written(body: bytes, schema: str | None, expected: type[E]) -> E:
    """`decode`, for messages published by people: every key must be known and occur once. MessageError names a key that breaks this."""
    try:
        found = decode(body, schema, expected)
    except MessageError as error:
        # the decoder's own error is less clear
        if body.startswith(codecs.BOM_UTF8):
            raise MessageError(
                f"{expected.__name__}: the body begins with a byte order mark: send UTF-8 without it"
            ) from None
        _check_text(body, expected.__name__)
        if "[...]" in str(error):
            _check_tables(body, expected)
        raise error
    try:
        keys = json.loads(body, object_pairs_hook=_once)
    except ValueError as error:
        raise MessageError(f"{expected.__name__}: {error}") from None
    except RecursionError:
        raise MessageError(f"{expected.__name__}: its content is nested too deeply") from None
    fields = expected.__struct_encode_fields__
    for key in keys:
        if key not in fields:
            near = get_close_matches(key, fields, 1)
            newer = (
                ""
                if schema in (None, expected.schema())
                else f" in {expected.schema()}, which this orchestrator knows"
            )
            raise MessageError(
                f"{expected.__name__}: unknown key {quoted(key)}{newer}{f': did you mean {near[0]}?' if near else ''} (known: {', '.join(fields)})"
            )
    return found


def _check_text(body: bytes, name: str) -> None:
    """Raise MessageError with the key of the first text that is not valid Unicode. Does nothing for a body that cannot be parsed."""
    try:
        location = _lone_surrogate(json.loads(body), [])
    except (ValueError, RecursionError):
        return
    if location is not None:
        raise MessageError(
            f"{name}: {location} has half of a surrogate pair, which is not a character: send valid Unicode text"
        )


def _check_tables(body: bytes, expected: type[Event]) -> None:
    """Raise MessageError with the key of the first value of another type in a field that is a table of names: the decoder names only the field."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return
    for field, hint in get_type_hints(expected, include_extras=True).items():
        for table in (hint, *get_args(hint)):
            if get_origin(table) is not dict or not isinstance(values := fields.get(field), dict):
                continue
            for name, value in values.items():
                try:
                    msgspec.convert(value, get_args(table)[1])
                except msgspec.ValidationError as error:
                    raise MessageError(f"{expected.__name__}: {quoted(f'{field}.{name}')}: {error}") from None


def _lone_surrogate(value: Any, above: list[str]) -> str | None:
    """The key of the first text that UTF-8 cannot encode, as `task.files.NAME`, or None. `above`: the keys that lead to `value`."""
    if isinstance(value, str):
        return None if value.isascii() or _writable(value) else ".".join(above)
    inner: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, each in inner:
        above.append(str(name))  # joined only where one is found: each key may lie below a long one
        if isinstance(name, str) and not _writable(name):
            return f"the name of the key {quoted('.'.join(above))}"
        if (found := _lone_surrogate(each, above)) is not None:
            return found
        above.pop()
    return None


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {quoted(name)} comes twice")
        found[name] = value
    return found


def _counts(version: str) -> bool:
    return version.isascii() and version.isdigit() and len(version) < 10 and int(version) >= 1
