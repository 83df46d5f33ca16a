"""A completion request and its reply, independent of the wire: dialects translate into the one and out of the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.ids import sha256
from orchestrator.gateway.messages import Turn, call_id, canonical_json
from orchestrator.gateway.problems import bad_request

MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a harness asks for. `digest` (hex) is over its whole body: equal digests are the same request again.

    `model` is the name that it asks for; `retries` is what its retry header says; `reason` why it rewrote its history, if it says so;
    `left_out` counts the parts and tools that were stripped because they would bypass the sandbox.
    """

    turns: tuple[Turn, ...]
    tools: tuple[Mapping[str, Any], ...]
    digest: str
    agent: str = "main"
    model: str = ""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    calls_allowed: bool = True
    retries: int = 0
    reason: str | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A recorded step as it is served. finish: stop | length | abort."""

    step: int
    turn: Turn
    finish: str
    parse: str
    prompt_tokens: int
    completion_tokens: int
    timings: StepTimings

    @property
    def finish_reason(self) -> str:
        """In OpenAI's words: tool_calls when the message calls tools."""
        if self.turn.calls:
            return "tool_calls"
        return "length" if self.finish == "length" else "stop"

    def call_ids(self) -> list[str]:
        """The minted id of every tool call, in order."""
        return [call_id(self.step, i) for i in range(len(self.turn.calls))]


def body_digest(wire: str, body: Any) -> str:
    """Hex digest of a decoded body, whatever its spacing and key order."""
    return sha256(f"{wire}\n{canonical_json(body)}".encode()).hex()


def read_tools(raw: Any) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """(function tools, tools left out): provider-side tools run outside the sandbox and are stripped."""
    if raw is None:
        return (), 0
    if not isinstance(raw, list):
        raise bad_request("tools must be a list", "tools")
    tools = []
    for tool in raw:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            tools.append({"type": "function", "function": function})
    return tuple(tools), len(raw) - len(tools)


def read_stop(raw: Any) -> tuple[str, ...]:
    """Stop strings: one, a list, or none."""
    stops = [raw] if isinstance(raw, str) else [] if raw is None else raw
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise bad_request("stop must be a non-empty string or a list of them", "stop")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise bad_request(
            f"at most {MAX_STOPS} stop strings of {MAX_STOP_CHARACTERS} characters are taken", "stop"
        )
    return tuple(stops)


def read_limit(raw: Any, param: str) -> int | None:
    """A token limit: a positive integer or null."""
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 1:
        raise bad_request(f"{param} must be a positive integer", param)
    return raw
