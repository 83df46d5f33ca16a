"""The interface between wires and the gateway: a dialect reads its wire's bodies, and writes replies, streams and errors in its wire's form.

Every wire is converted to OpenAI's chat form (`ChatRequest`). `request_of` makes the gateway's one request type from it. A stream is
made from the finished action; before that a wire sends only its opening and keep-alives.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from orchestrator.contracts.limits import MAX_AGENT
from orchestrator.contracts.marks import MAIN_AGENT
from orchestrator.contracts.quote import cut_to, quoted
from orchestrator.gateway.http.dialects.choice import read_choice
from orchestrator.gateway.http.dialects.fields import check_fields, stripped, unknown
from orchestrator.gateway.http.dialects.tool_names import ToolNames
from orchestrator.gateway.messages.requests import (
    CallRule,
    CompletionRequest,
    Reply,
    body_digest,
    read_limit,
    read_stop,
)
from orchestrator.gateway.messages.turns import read_messages
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.pool.sanitize import clean

RETRY_HEADER = "x-stainless-retry-count"
AGENT_HEADER = "x-penstock-agent"  # which of a rollout's agents makes the request; default "main"
KEEP_ALIVE_S = 5.0
# Only CR and LF end a line of a stream, but clients that split text (httpx's `iter_lines`) also end one at these.
_LINE_ENDS = [(character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029"]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as a dialect read it. `stream`: the reply is streamed; `echo`: values that the reply repeats (model, options)."""

    request: CompletionRequest
    stream: bool
    echo: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about the session that the reading of a body depends on. `past`: the session has a step, so the messages of a body are a history
    (`content.py`). `stored`: the objects that the body refers to by id: for a response its messages in chat form, for an item one item in the
    wire's own form, None for an unknown id."""

    past: bool = False
    stored: Mapping[str, Any] = field(default_factory=dict)


class Wanted(Problem):
    """400: a body refers to ids of served objects. It can be read once `Known.stored` holds `ids`."""

    def __init__(self, ids: Sequence[str], param: str) -> None:
        super().__init__(
            400,
            "not_found",
            f"{param} refers to {quoted(ids[0])}, which is not of this session: send the whole conversation as input",
            param=param,
        )
        self.ids = tuple(ids)


NOTHING = Known()


class Events(Protocol):
    """The server-sent events of one reply. A stream always ends with `finished` or `failed`."""

    def opening(self) -> bytes:
        """The first event, sent at once, before anything is generated."""

    def waiting(self) -> bytes:
        """A keep-alive until the reply is there."""

    def finished(self, reply: Reply) -> Iterator[bytes]:
        """The finished action, to the end of the stream."""

    def failed(self, problem: Problem) -> Iterator[bytes]:
        """The end of a stream that failed after its opening."""


class Dialect(Protocol):
    """One wire. Stateless."""

    name: str
    paths: tuple[str, ...]  # below /s/<token> and, with the token as API key, below /
    counting: tuple[str, ...]  # the same, for counting the tokens of a prompt

    def read(self, body: Any, headers: Mapping[str, str], known: Known = NOTHING) -> Incoming:
        """Read a decoded JSON body. Raises Problem 400 naming the error, Wanted if it refers to ids that `known` does not hold yet."""

    def reply(self, incoming: Incoming, reply: Reply) -> Any:
        """The body of a reply that is not streamed."""

    def events(self, incoming: Incoming) -> Events:
        """The stream of one reply."""

    def counted(self, tokens: int) -> Any:
        """The body that answers a request for the size of a prompt."""

    def error(self, problem: Problem) -> Any:
        """The body of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request's conversation in chat form. `left_out` counts stripped provider-side items and tools; `names`: the tools by their names on a
    wire with namespaces; `all_removed`: the conversation has removed every tool, so no call may be made."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    left_out: int = 0
    names: ToolNames | None = None
    all_removed: bool = False


def request_of(
    wire: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    chat_request: ChatRequest,
    *,
    limits: Sequence[str],
    stop: str,
    agent: str | None = None,
    reason: str | None = None,
    past: bool = False,
    number: int | None = None,
) -> CompletionRequest:
    """The gateway's request. `limits` and `stop` name the body's keys for token limits and stop strings; `agent`: the name that the body
    has, None: a header may have it."""
    turns, parts_out = read_messages(chat_request.messages, past=past)
    names = ToolNames.plain(chat_request.tools) if chat_request.names is None else chat_request.names
    rule = read_choice(body, names)
    limits_sent = [limit for key in limits if (limit := read_limit(body.get(key), key)) is not None]
    return CompletionRequest(
        turns=tuple(turns),
        tools=tuple(chat_request.tools),
        digest=body_digest(wire, body) if agent else body_digest(wire, body, agent_of(headers)),
        agent=agent or agent_of(headers),
        model=str(body.get("model") or ""),
        max_tokens=min(limits_sent) if limits_sent else None,
        stop=read_stop(body.get(stop), stop),
        rule=CallRule(most=0) if chat_request.all_removed else rule,
        retries=retries_of(headers),
        reason=reason,
        left_out=parts_out + chat_request.left_out + stripped(wire, body),
        unknown=len(unknown(wire, body)),
        wire=wire,
        number=number,
    )


def as_object(body: Any, wire: str) -> dict[str, Any]:
    """The body. All wires require an object. Raises Problem 400 naming a field that cannot be honoured."""
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    check_fields(wire, body)
    return body


def model_of(body: Mapping[str, Any]) -> str:
    """The model's name as the reply repeats it."""
    return str(body.get("model") or "policy")


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    encoded = msgspec.json.encode(data)
    for character, escape in _LINE_ENDS:
        encoded = encoded.replace(character, escape)
    return name + b"data: " + encoded + b"\n\n"


def retries_of(headers: Mapping[str, str]) -> int:
    """How often the harness reports that it has sent this request before."""
    value = headers.get(RETRY_HEADER, "0")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0


def agent_of(headers: Mapping[str, str]) -> str:
    """The agent's name from its header. The bytes of the header need not be text."""
    return cut_to(clean(headers.get(AGENT_HEADER, MAIN_AGENT)), MAX_AGENT) or MAIN_AGENT
