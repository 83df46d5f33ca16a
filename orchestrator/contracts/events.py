"""Every message on the bus. Names are past tense; producer → consumer are named. Additive only: never remove or retype a field.

Bodies are JSON, readable with `nats sub`; token arrays are base64 of little-endian int32 / float32. The header
`Penstock-Schema: <Name>/<version>` names the struct; a reader accepts its own version and every later one (unknown fields are ignored).
"""

from typing import Any, TypeVar

import msgspec

from orchestrator.contracts.errors import MessageError


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every bus message."""

    @classmethod
    def schema(cls) -> str:
        """The value of the schema header, such as `StepRecorded/1`."""
        return f"{cls.__name__}/1"


class TaskSubmitted(Event, frozen=True):
    """Signals that a user wants one group. users → orchestrator.

    `task` is the packed task directory: {"files": {path: text}, "files_b64": {path: base64}}.
    `submission` identifies it (absent: sha256 of the body): publishing it again is a no-op.
    """

    task: dict[str, Any]
    submission: str | None = None
    purpose: str = "train"
    scaffold: str | None = None
    group_size: int | None = None
    label: str | None = None  # evaluation or recording that this belongs to
    version: int | None = None  # pinned policy version (eval)
    sampling: dict[str, float] | None = None  # overrides of the run's sampling parameters (eval, record)


class RolloutAssigned(Event, frozen=True):
    """Signals that a rollout may be leased at this epoch. orchestrator (outbox) → runner."""

    run: str
    rollout: int
    attempt: int
    epoch: int


class VerifyAssigned(Event, frozen=True):
    """Signals that a finished rollout may be verified at this epoch. orchestrator (outbox) → verifier runner."""

    run: str
    rollout: int
    attempt: int
    epoch: int


class VersionSpan(msgspec.Struct, frozen=True):
    """Half-open run [start, end) of action tokens made by one policy version."""

    version: int
    start: int
    end: int


class StepTimings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds. `queue`: waiting, for admission and in queues of rollout servers. `generation`: from the first admitted send to the reply, less
    what was waited in between; `first_byte`: its part until the first token. `gap`: since the previous reply of the session."""

    queue: float = 0.0
    first_byte: float = 0.0
    generation: float = 0.0
    gap: float = 0.0


class StepRoutes(msgspec.Struct, frozen=True):
    """The experts of a mixture that a step's tokens were sent to (contracts.routes). `ids` is base64 of [n, layers, top_k], `width` bytes
    each, of the positions from `start` on; `sha` (hex) is contracts.routes.routes_sha."""

    start: int
    layers: int
    top_k: int
    width: int
    ids: str
    sha: str


class StepRecorded(Event, frozen=True):
    """Signals that one completion happened: the token delta, never the whole context. gateway (journal) → orchestrator.

    full = state + action; state = parent.full[:keep_len] + delta; a root's parent is its prompt (base64 ids, content-addressed).
    len(action) == len(logprobs) == sum of the spans. Every array is base64 little-endian.
    """

    run: str
    rollout: int
    attempt: int
    epoch: int
    idx: int
    kind: str
    parent: int | None
    root: int
    keep_len: int
    state_len: int
    full_len: int
    delta: str
    action: str
    logprobs: str
    spans: list[VersionSpan]
    chain_sha: str  # hex
    row_sha: str  # hex
    sampling: dict[str, Any]
    finish: str  # stop | length | abort
    parse: str  # ok | ill_formed
    agent: str = "main"
    prompt: str | None = None
    prompt_sha: str | None = None  # hex
    timings: StepTimings = StepTimings()
    appended: list[dict[str, Any]] = []  # the messages that this request added
    reply: dict[str, Any] = {}  # the parsed action: content, reasoning, tool_calls
    request_digest: str = ""  # hex
    branch_reason: str | None = None  # why this is not a plain continuation
    branch: dict[str, Any] | None = (
        None  # near, turn, field, recorded, sent: the first difference to the nearest step
    )
    marks: list[str] = []  # why the step must not train, as far as that was known when it was recorded
    routes: StepRoutes | None = None  # where routing replay is on


class StepMark(msgspec.Struct, frozen=True):
    """A step that must not train: undelivered | auxiliary | version_suspect | drift."""

    idx: int
    reason: str


class ToolCallTimed(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool execution as the runner saw it; seconds since the attempt's start, bytes of output."""

    step: int
    call: int
    name: str
    start: float
    end: float
    exit: int | None = None
    bytes: int = 0


class ArtifactFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file that crosses to verification, relative to the work directory; `body` is base64, None = deleted."""

    path: str
    body: str | None
    mode: int = 0o644


PHASES = ("session", "sandbox", "agent", "changes", "seal", "other")
"""What a runner's slot is held for, in order; `other`: between them."""


class RolloutFinished(Event, frozen=True):
    """Signals the end of one attempt, with what its sealed session announced. runner (journal) → orchestrator.

    `digest` (hex) is sha256 of all chain_sha in idx order; the rollout is complete only when every announced step is in the data pool.
    `resumable`: an infrastructure failure after which the recorded steps can be replayed. `replay` (contracts.states.Replay) and `replayed`
    (steps) tell what became of a resume; empty and 0 for an attempt that was none. `spent`: the runner's seconds by phase, PHASES at most.
    """

    run: str
    rollout: int
    attempt: int
    epoch: int
    failure_class: str
    reason: str = ""
    steps: int = 0
    last_idx: int = -1
    digest: str = ""
    marks: list[StepMark] = []
    answer: str | None = None
    artifacts: list[ArtifactFile] = []
    tool_calls: list[ToolCallTimed] = []
    log: str = ""
    agent_s: float = 0.0  # wall time of the attempt without platform queueing
    queued_s: float = 0.0  # waiting for gateway, rollout server or sandbox start
    scaffold: str = ""
    scaffold_version: str = ""
    scaffold_sha: str = ""
    resumable: bool = False
    replay: str = ""
    replayed: int = 0
    spent: dict[str, float] = {}


class TestResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One test of the verifier."""

    __test__ = False

    name: str
    passed: bool
    message: str = ""


class VerdictReached(Event, frozen=True):
    """Signals that a verifier ended. verifier runner (journal) → orchestrator.

    `reward` is in [0, 1] when `failure_class` is completed, else None: an infrastructure failure is never reward 0.
    """

    run: str
    rollout: int
    attempt: int
    epoch: int
    failure_class: str
    reward: float | None
    reason: str = ""
    tests: list[TestResult] = []
    exit_code: int | None = None
    log: str = ""
    verify_s: float = 0.0


class PolicyPublished(Event, frozen=True):
    """Signals a new policy version. trainer (outbox) → gateway, orchestrator. `revision` grows; an older one is a no-op."""

    run: str
    version: int
    path: str
    manifest_sha: str
    batch_no: int | None
    revision: int


class SubmissionAnswered(Event, frozen=True):
    """Signals the fate of one submission, once its row is committed. orchestrator → users (core NATS notice)."""

    submission: str
    status: str  # accepted | rejected
    reason: str = ""
    earlier: bool = False  # it was answered before, and that answer stays


class DeadLettered(Event, frozen=True):
    """Signals that a message could not be used. anyone → operators. `body` is base64 of the original."""

    stream: str
    subject: str
    schema_: str = msgspec.field(name="schema", default="")
    reason: str = ""
    deliveries: int = 1
    body: str = ""


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
        raise MessageError(f"unknown schema {schema!r}; known: {', '.join(sorted(EVENTS))}")
    if name != expected.__name__ or not version.isdigit() or int(version) < 1:
        raise MessageError(
            f"schema {schema!r} is not expected here: this subject carries {expected.schema()}"
        )
    try:
        return msgspec.json.decode(body, type=expected)
    except msgspec.MsgspecError as error:
        raise MessageError(f"{expected.__name__}: {error}") from error
    except RecursionError:
        raise MessageError(f"{expected.__name__}: its content is nested too deeply") from None
