"""The seam between wires and the gateway: a dialect reads its wire's bodies, and spells replies, streams and errors its own way.

Every wire is brought into OpenAI's chat form (`Spoken`), from which `request_of` makes the one request that the gateway knows. A stream is
made from the finished action; what a wire says before that is its opening and its sign of life.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from orchestrator.gateway.messages import read_messages
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.gateway.requests import CompletionRequest, Reply, body_digest, read_limit, read_stop
from orchestrator.pool.clean import clean

RETRY_HEADER = "x-stainless-retry-count"
AGENT_HEADER = "x-penstock-agent"  # which of a rollout's agents speaks; default "main"
KEEP_ALIVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as a dialect read it. `stream`: the reply goes out as a stream; `echo`: what the reply repeats (model, options)."""

    request: CompletionRequest
    stream: bool
    echo: Mapping[str, Any]


class Events(Protocol):
    """The server-sent events of one reply. A stream ends with `finished` or `failed`, whatever happened."""

    def opening(self) -> bytes:
        """At once, before anything was generated."""

    def waiting(self) -> bytes:
        """A sign of life while nothing is there yet."""

    def finished(self, reply: Reply) -> Iterator[bytes]:
        """The finished action, to the end of the stream."""

    def failed(self, problem: Problem) -> Iterator[bytes]:
        """The end of a stream that failed after its opening."""


class Dialect(Protocol):
    """One wire. Stateless."""

    name: str
    paths: tuple[str, ...]  # below /s/<token> and, with the token as API key, below /
    counting: tuple[str, ...]  # the same, for what a prompt amounts to

    def read(self, body: Any, headers: Mapping[str, str]) -> Incoming:
        """A decoded JSON body; raises Problem 400 naming what is wrong."""

    def reply(self, incoming: Incoming, reply: Reply) -> Any:
        """The body of a reply that is not streamed."""

    def events(self, incoming: Incoming) -> Events:
        """The stream of one reply."""

    def counted(self, tokens: int) -> Any:
        """The body that answers a question for the size of a prompt."""

    def error(self, problem: Problem) -> Any:
        """The body of an error."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A request's conversation in chat form. `left_out` counts provider-side items and tools that were stripped."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    left_out: int = 0


def request_of(
    wire: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    spoken: Spoken,
    *,
    limits: Sequence[str],
    stop: str,
    agent: str | None = None,
    reason: str | None = None,
) -> CompletionRequest:
    """The gateway's request. `limits` and `stop` name the keys of the body that hold token limits and stop strings."""
    turns, parts_out = read_messages(spoken.messages)
    given = [limit for key in limits if (limit := read_limit(body.get(key), key)) is not None]
    return CompletionRequest(
        turns=tuple(turns),
        tools=tuple(spoken.tools),
        digest=body_digest(wire, body),
        agent=agent or agent_of(headers),
        model=str(body.get("model") or ""),
        max_tokens=min(given) if given else None,
        stop=read_stop(body.get(stop)),
        calls_allowed=_calls_allowed(body.get("tool_choice")),
        retries=retries_of(headers),
        reason=reason,
        left_out=parts_out + spoken.left_out,
        wire=wire,
    )


def _calls_allowed(choice: Any) -> bool:
    """Whether the policy may call tools. That it must cannot be asked of it: training samples what it would say."""
    return (choice.get("type") if isinstance(choice, dict) else choice) != "none"


def as_object(body: Any) -> dict[str, Any]:
    """The body, which all wires want to be an object."""
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return body


def model_of(body: Mapping[str, Any]) -> str:
    """The model's name as the reply repeats it."""
    return str(body.get("model") or "policy")


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    return name + b"data: " + msgspec.json.encode(data) + b"\n\n"


def retries_of(headers: Mapping[str, str]) -> int:
    """How often the harness says it has sent this before."""
    value = headers.get(RETRY_HEADER, "0")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0


def agent_of(headers: Mapping[str, str]) -> str:
    """The agent's name, from its header, whose bytes need not be text."""
    return clean(headers.get(AGENT_HEADER, "main")[:64]) or "main"
