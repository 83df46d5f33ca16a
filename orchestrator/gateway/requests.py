"""A completion request and its reply, independent of the wire: dialects translate into the one and out of the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.ids import sha256
from orchestrator.gateway.messages import Turn, call_id, too_deep
from orchestrator.gateway.problems import bad_request

MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a harness asks for. `digest` (hex) is over its whole body: equal digests are the same request again. `wire` is its dialect's name.

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
    wire: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A recorded step as it is served. finish: stop | length | abort. `stopped`: the stop string of the request that ended it. `replayed`:
    served again to a resumed attempt; its timings are those of the first time."""

    step: int
    turn: Turn
    finish: str
    parse: str
    prompt_tokens: int
    completion_tokens: int
    timings: StepTimings
    stopped: str | None = None
    replayed: bool = False

    @property
    def finish_reason(self) -> str:
        """In OpenAI's words: tool_calls when the message calls tools."""
        if self.turn.calls:
            return "tool_calls"
        return "length" if self.finish == "length" else "stop"

    def call_ids(self) -> list[str]:
        """The minted id of every tool call, in order."""
        return [call_id(self.step, i) for i in range(len(self.turn.calls))]


def body_digest(wire: str, body: Mapping[str, Any]) -> str:
    """Hex digest of a decoded body, whatever its spacing and key order, and however the reply is to travel: a program whose stream
    broke asks again without one."""
    asked = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    return sha256(wire.encode() + b"\n" + msgspec.json.encode(asked, order="deterministic")).hex()


def read_tools(raw: Any) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """(function tools, tools left out) of a chat-form list: provider-side tools run outside the sandbox and are stripped."""
    tools = []
    for i, tool in enumerate(tool_list(raw)):
        function = tool.get("function")
        if tool.get("type", "function") == "function" and isinstance(function, dict):
            tools.append(
                function_tool(
                    function.get("name"),
                    function.get("description"),
                    function.get("parameters"),
                    f"tools[{i}]",
                )
            )
        elif tool.get("type") == "function":
            raise bad_request(f"tools[{i}] has no function object", "tools")
    return tuple(tools), len(raw or ()) - len(tools)


def tool_list(raw: Any) -> list[dict[str, Any]]:
    """A request's tools, each an object; none for null."""
    if raw is None:
        return []
    if not isinstance(raw, list) or not all(isinstance(tool, dict) for tool in raw):
        raise bad_request("tools must be a list of objects", "tools")
    return raw


def function_tool(name: Any, description: Any, schema: Any, where: str) -> dict[str, Any]:
    """One form for a tool on all wires: name, description, parameters in this order, since templates print it; anything else that a
    wire says about a tool (cache markers, strictness) does not reach the prompt. Raises Problem 400 naming what is malformed."""
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where} has no name", "tools")
    if schema is None:
        schema = {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise bad_request(f"{where}: the schema of tool {name!r} must be a JSON object", "tools")
    kind, required = schema.get("type", "object"), schema.get("required") or []
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise bad_request(
            f"{where}: the schema of tool {name!r} must be of type object, not {kind!r}", "tools"
        )
    if not isinstance(schema.get("properties") or {}, dict):
        raise bad_request(f"{where}: the properties of tool {name!r} must be an object", "tools")
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        raise bad_request(f"{where}: what tool {name!r} requires must be a list of names", "tools")
    if too_deep(schema):
        raise bad_request(f"{where}: the schema of tool {name!r} is nested too deeply", "tools")
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str) and description:
        function["description"] = description
    return {"type": "function", "function": {**function, "parameters": schema}}


def read_stop(raw: Any) -> tuple[str, ...]:
    """Stop strings: one, a list, or none."""
    stops = [raw] if isinstance(raw, str) else [] if raw is None else raw
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise bad_request("stop must be a non-empty string or a list of them", "stop")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise bad_request(
            f"at most {MAX_STOPS} stop strings of {MAX_STOP_CHARACTERS} characters are taken", "stop"
        )
    # They are recorded with the sampling parameters, as they are: the data pool could not hold one.
    if any("\0" in stop for stop in stops):
        raise bad_request("a stop string must not hold NUL characters", "stop")
    return tuple(stops)


def read_limit(raw: Any, param: str) -> int | None:
    """A token limit: a positive integer or null."""
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 1:
        raise bad_request(f"{param} must be a positive integer", param)
    return raw
