"""A completion request and its reply, independent of the wire. Dialects convert to the request and from the reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.ids import sha256
from orchestrator.contracts.marks import MAIN_AGENT, Finish, ParseStatus, ReplyFinish
from orchestrator.contracts.quote import quoted
from orchestrator.gateway.messages.turns import Turn, call_id, too_deep
from orchestrator.gateway.problems import bad_request

MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256
SYNTAXES = ("lark", "regex")
INPUT = "input"  # the only parameter of a freeform tool
FREEFORM: dict[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class CallRule:
    """The calls that a reply may make: at most `most` (0: none; None: any number), only of `names` (None: of all offered tools), and at least
    one if `required`."""

    most: int | None = None
    names: tuple[str, ...] | None = None
    required: bool = False

    def holds(self, called: Sequence[str]) -> bool:
        """Whether a reply that calls these, in order, keeps the rule."""
        if self.most is not None and len(called) > self.most:
            return False
        if self.names is not None and not set(called) <= set(self.names):
            return False
        return bool(called) or not self.required

    def plain(self) -> Any:
        """The form that is recorded with the sampling parameters; None: the request has no rule."""
        if self.most == 0:
            return "none"
        fields = {
            "most": self.most,
            "names": None if self.names is None else list(self.names),
            "required": self.required,
        }
        return {key: value for key, value in fields.items() if value not in (None, False)} or None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A harness's request. `digest` (hex): see `body_digest`; equal digests are the same request again. `wire` is its dialect's name.

    `model` is the requested name; `retries` is the value of its retry header; `reason` is why it rewrote its history, if it reports that;
    `left_out` counts the parts and tools that were stripped because they would bypass the sandbox;
    `unknown` counts the fields that its wire does not know;
    `number` is its number among the calls of its agent, if its wire has one.
    """

    turns: tuple[Turn, ...]
    tools: tuple[Mapping[str, Any], ...]
    digest: str
    agent: str = MAIN_AGENT
    model: str = ""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    rule: CallRule = CallRule()
    retries: int = 0
    reason: str | None = None
    left_out: int = 0
    unknown: int = 0
    wire: str | None = None
    number: int | None = None

    def check_answerable(self) -> None:
        """Raise Problem 400 if the last message is the assistant's: a reply after it would not continue it, as the client expects."""
        if self.turns and self.turns[-1].role == "assistant":
            param = "input" if self.wire == "responses" else "messages"
            raise bad_request(
                f"the last message of {param} is the assistant's, and an answer is not continued here (no prefill): "
                "end with a message of the user or a tool's result",
                param,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A recorded step as it is served. `stopped`: the stop string of the request that ended it. `replayed`:
    served again to a resumed attempt, with the original timings. `generating`: when its tokens were generated, each (from, to) in
    seconds before this reply."""

    step: int
    turn: Turn
    finish: Finish
    parse: ParseStatus
    prompt_tokens: int
    completion_tokens: int
    timings: StepTimings
    stopped: str | None = None
    replayed: bool = False
    generating: tuple[tuple[float, float], ...] = ()

    @property
    def finish_reason(self) -> ReplyFinish:
        """The finish reason in OpenAI's words."""
        if self.turn.calls:
            return ReplyFinish.TOOL_CALLS
        return ReplyFinish.LENGTH if self.finish is Finish.LENGTH else ReplyFinish.STOP

    def call_ids(self) -> list[str]:
        """The minted id of every tool call, in order."""
        return [call_id(self.step, i) for i in range(len(self.turn.calls))]


def body_digest(wire: str, body: Mapping[str, Any], agent: str = MAIN_AGENT) -> str:
    """Hex digest of a decoded body, independent of spacing, key order and streaming: a program whose stream broke may retry without
    one. `agent`: its name, if the request has it outside the body."""
    content = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    key = wire.encode() + b"\n" + msgspec.json.encode(content, order="deterministic")
    return sha256(key if agent == MAIN_AGENT else key + b"\n" + agent.encode()).hex()


def freeform_tool(name: Any, description: Any, form: Any, where: str) -> dict[str, Any]:
    """A custom tool as a function of one string; `form`: its format. A grammar is added to the description."""
    tool = function_tool(name, description, FREEFORM, where)
    if form is None or (isinstance(form, dict) and form.get("type") == "text"):
        return tool
    if not isinstance(form, dict) or form.get("type") != "grammar":
        raise bad_request(f"{where}.format.type must be one of text, grammar", "tools")
    nested = isinstance(form.get("grammar"), dict)  # as Chat Completions writes it
    grammar, place = (form["grammar"], f"{where}.format.grammar") if nested else (form, f"{where}.format")
    if grammar.get("syntax") not in SYNTAXES:
        raise bad_request(f"{place}.syntax must be one of {', '.join(SYNTAXES)}", "tools")
    if not isinstance(grammar.get("definition"), str):
        raise bad_request(f"{place}.definition must be a string", "tools")
    rule = f"The input follows this {grammar['syntax']} grammar:\n{grammar['definition']}"
    return function_tool(name, f"{description}\n\n{rule}" if description else rule, FREEFORM, where)


def tool_list(raw: Any) -> list[dict[str, Any]]:
    """A request's tools, each an object; an empty list for null."""
    if raw is None:
        return []
    if not isinstance(raw, list) or not all(isinstance(tool, dict) for tool in raw):
        raise bad_request("tools must be a list of objects", "tools")
    return raw


def function_tool(name: Any, description: Any, schema: Any, where: str) -> dict[str, Any]:
    """One form for a tool on all wires: name, description, parameters in this order, since templates print it. Other properties of a tool
    on a wire (cache markers, strictness) do not reach the prompt. Raises Problem 400 naming the malformed part."""
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where} has no name", "tools")
    if not isinstance(description, str | None):
        raise bad_request(f"{where}: the description of tool {quoted(name)} must be a string", "tools")
    if schema is None:
        schema = {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise bad_request(f"{where}: the schema of tool {quoted(name)} must be a JSON object", "tools")
    kind, required = schema.get("type", "object"), schema.get("required") or []
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise bad_request(
            f"{where}: the schema of tool {quoted(name)} must be of type object, not {quoted(kind)}", "tools"
        )
    if not isinstance(schema.get("properties") or {}, dict):
        raise bad_request(f"{where}: the properties of tool {quoted(name)} must be an object", "tools")
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        raise bad_request(f"{where}: what tool {quoted(name)} requires must be a list of names", "tools")
    if too_deep(schema):
        raise bad_request(f"{where}: the schema of tool {quoted(name)} is nested too deeply", "tools")
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    return {"type": "function", "function": {**function, "parameters": schema}}


def read_stop(raw: Any, param: str) -> tuple[str, ...]:
    """Stop strings: one, a list, or none."""
    stops = [raw] if isinstance(raw, str) else [] if raw is None else raw
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise bad_request(f"{param} must be a non-empty string or a list of them", param)
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise bad_request(
            f"{param}: at most {MAX_STOPS} stop strings of {MAX_STOP_CHARACTERS} characters are taken", param
        )
    # Stop strings are recorded unchanged with the sampling parameters, and the data pool cannot store NUL.
    if any("\0" in stop for stop in stops):
        raise bad_request(f"{param}: a stop string must not hold NUL characters", param)
    return tuple(stops)


def read_limit(raw: Any, param: str) -> int | None:
    """A token limit: a positive integer or null."""
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 1:
        raise bad_request(f"{param} must be a positive integer", param)
    return raw
