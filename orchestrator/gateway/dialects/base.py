"""The seam between wires and the gateway: a dialect reads its wire's bodies, and spells replies, streams and errors its own way."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.gateway.calls import Call
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.requests import CompletionRequest, Reply

RETRY_HEADER = "x-stainless-retry-count"
AGENT_HEADER = "x-penstock-agent"  # which of a rollout's agents speaks; default "main"
KEEP_ALIVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as a dialect read it. `stream`: the reply goes out as a stream; `echo`: what the reply repeats (model, options)."""

    request: CompletionRequest
    stream: bool
    echo: Mapping[str, Any]


class Dialect(Protocol):
    """One wire. Stateless."""

    name: str
    paths: tuple[str, ...]  # below /s/<token> and, with the token as API key, below /

    def read(self, body: Any, headers: Mapping[str, str]) -> Incoming:
        """A decoded JSON body; raises Problem 400 naming what is wrong."""

    def reply(self, incoming: Incoming, reply: Reply) -> Any:
        """The body of a reply that is not streamed."""

    def stream(self, incoming: Incoming, call: Call) -> AsyncIterator[bytes]:
        """Server-sent events, from the first moment on: keep-alives until the call is done, then the finished action; a Problem becomes
        an event of the wire, never an exception."""

    def error(self, problem: Problem) -> Any:
        """The body of an error."""


def retries_of(headers: Mapping[str, str]) -> int:
    """How often the harness says it has sent this before."""
    value = headers.get(RETRY_HEADER, "0")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0


def agent_of(headers: Mapping[str, str]) -> str:
    """The agent's name, from its header."""
    return headers.get(AGENT_HEADER, "main")[:64] or "main"
