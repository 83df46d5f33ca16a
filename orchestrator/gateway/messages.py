"""Messages as the gateway compares and renders them: flattened, folded, with arguments as canonical JSON.

Every wire is first brought into OpenAI's chat form; `read_messages` then makes `Turn`s of it. The rules are prefix-stable: how a
message is read depends only on those before it, so that a longer history begins with the same turns.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.pool.clean import clean, clean_json

Role = Literal["system", "user", "assistant", "tool"]

DEEPEST = 64  # levels of objects and arrays in a call or a tool: whatever reads them recurses
STEP_KEY = "penstock_step"  # of a chat-form assistant message: the step that a dialect recognised in the wire's own ids
_MINTED = re.compile(r"(?:call|fc|ctc|msg|rs)_s(\d{1,9})(?:_\d+)?")
_WHOLE = re.compile(r"\d(?:\.0|[eE])")  # where a number may be a whole one in another spelling
# What only a provider's own servers make: nothing that the policy could be shown.
_PROVIDER_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "server_tool_use"})
_UNREADABLE = {
    "image": "an image",
    "image_url": "an image",
    "input_image": "an image",
    "computer_screenshot": "an image",
    "input_audio": "audio",
    "audio": "audio",
    "file": "a file",
    "input_file": "a file",
    "document": "a document",
}


class Call(msgspec.Struct, frozen=True, gc=False):
    """One tool call. `arguments` is canonical JSON (sorted keys, no spaces), so that spacing and key order do not matter."""

    name: str
    arguments: str

    def mapping(self) -> dict[str, Any]:
        """The arguments as a mapping, which is what templates need."""
        value = json.loads(self.arguments)
        return value if isinstance(value, dict) else {"input": value}


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One message. `hint`: the step that an assistant message's tool-call ids name, if they are ours; never part of `same`. A struct, since
    every call makes one of each message of its history."""

    role: Role
    text: str
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    hint: int | None = None

    def same(self, other: "Turn") -> bool:
        """Whether `other`, which a harness sent, is this message. Reasoning that it leaves out matches any; what it has must match."""
        if self.role != other.role or (
            (self.calls or other.calls) and not _same_calls(self.calls, other.calls)
        ):
            return False
        if self.text != other.text and (self.role != "assistant" or self.text.strip() != other.text.strip()):
            return False
        if self.role != "assistant":
            return True
        if other.reasoning is None:
            return True
        return (self.reasoning or "").strip() == other.reasoning.strip()

    def plain(self) -> dict[str, Any]:
        """The JSON form that is recorded; `from_plain` reads it back."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.reasoning is not None:
            message["reasoning"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"name": call.name, "arguments": json.loads(call.arguments)} for call in self.calls
            ]
        return message

    @classmethod
    def from_plain(cls, message: dict[str, Any]) -> "Turn":
        """The inverse of `plain`."""
        calls = tuple(
            Call(call["name"], canonical_json(call["arguments"])) for call in message.get("tool_calls") or []
        )
        return cls(message["role"], message.get("content") or "", message.get("reasoning"), calls)


def _same_calls(one: tuple[Call, ...], other: tuple[Call, ...]) -> bool:
    """Whether two messages make the same calls. JavaScript replays 1.0 as 1, and 1e3 as 1000."""
    return one == other or (
        len(one) == len(other)
        and all(
            a == b or (a.name == b.name and _whole_numbers(a.arguments) == _whole_numbers(b.arguments))
            for a, b in zip(one, other, strict=True)
        )
    )


def _whole_numbers(arguments: str) -> str:
    """Canonical arguments in which a number without a fraction is an integer."""
    if _WHOLE.search(arguments) is None:
        return arguments
    return json.dumps(
        json.loads(arguments, parse_float=_number), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def same_turns(one: Sequence[Turn], other: Sequence[Turn]) -> bool:
    """Whether two sequences are the same messages."""
    if len(one) != len(other):
        return False
    return all(map(Turn.same, one, other))


def canonical_json(value: Any) -> str:
    """One spelling per JSON value, as the data pool can hold it."""
    return json.dumps(clean_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def too_deep(value: Any) -> bool:
    """Whether a JSON value has more than DEEPEST levels."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def call_id(step: int, position: int) -> str:
    """The id of a minted tool call: all wires replay it verbatim, so it tells which step it came from."""
    return f"call_s{step}_{position}"


def step_of(identifier: object) -> int | None:
    """The step of an id that a wire minted (`call_id`, or the id of an item), else None."""
    found = _MINTED.fullmatch(identifier) if isinstance(identifier, str) else None
    return int(found[1]) if found is not None else None


def flatten(content: Any, where: str = "messages") -> tuple[str, int]:
    """(text, parts left out): content as a string, text parts joined. What a provider's servers made is left out and counted;
    images, audio and files are refused (Problem 400): the policy reads text only, and fetching them would bypass the sandbox."""
    if content is None:
        return "", 0
    if isinstance(content, str):
        return clean(content), 0
    if not isinstance(content, list):
        raise bad_request(
            f"{where}: the content of a message must be a string, a list of parts or null", "messages"
        )
    texts, left_out = [], 0
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if isinstance(kind, str) and (kind in _PROVIDER_PARTS or kind.endswith("_tool_result")):
            left_out += 1
        elif isinstance(text, str):
            texts.append(text)
        else:
            raise unreadable(kind, where)
    return clean("".join(texts)), left_out


def unreadable(kind: object, where: str) -> Problem:
    """400: content that the policy cannot read."""
    if isinstance(kind, str) and kind in _UNREADABLE:
        return bad_request(
            f"{where} holds {_UNREADABLE[kind]} ({kind}), and this policy reads text only: send text instead",
            "messages",
        )
    return bad_request(f"{where} holds content of the unsupported type {kind!r}: send text parts", "messages")


def read_call(raw: Any) -> Call:
    """A tool call of a history. Arguments that are no JSON object become {"input": …}: they must not break a template."""
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(function, dict):
        function = raw if isinstance(raw, dict) else {}
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise bad_request("a tool call of the history has no function name", "messages")
    if isinstance(arguments, str):
        text = arguments
        try:
            arguments = msgspec.json.decode(text) if text.strip() else {}
        except msgspec.DecodeError:
            arguments = {"input": text}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        arguments = {"input": arguments}
    if too_deep(arguments):
        raise bad_request(f"the arguments of a call of {name!r} are nested too deeply", "messages")
    return Call(clean(name), canonical_json(arguments))


def read_messages(raw: Any) -> tuple[list[Turn], int]:
    """(turns, parts left out) of a chat-form message list. Raises Problem 400 naming what is malformed.

    Folded, since templates drop or refuse them: a system message after the first place and a tool result without a call become
    user messages; `developer` is system. Parallel tool results stand in the order of their calls: templates do not show ids.
    """
    if not isinstance(raw, list) or not raw:
        raise bad_request("messages must be a non-empty list", "messages")
    turns: list[Turn] = []
    left_out = 0
    called: dict[str, int] = {}  # positions of the last assistant message's tool calls, by id
    results: list[tuple[int, Turn]] = []  # of those calls, so far without interruption
    for i, message in enumerate(raw):
        if not isinstance(message, dict):
            raise bad_request(f"messages[{i}] is not an object", "messages")
        role = message.get("role")
        content = message.get("content")
        if isinstance(content, str):  # nearly all are
            text = clean(content)
        else:
            text, missing = flatten(content, f"messages[{i}]")
            left_out += missing
        if role in ("tool", "function"):
            if not called:
                turns.append(Turn("user", text))
                continue
            results.append((called.get(str(message.get("tool_call_id")), len(called)), Turn("tool", text)))
            results.sort(key=lambda result: result[0])
            turns[len(turns) - len(results) + 1 :] = [turn for _, turn in results]
            continue
        results = []
        match role:
            case "system" | "developer":
                turns.append(Turn("system" if i == 0 else "user", text))
            case "user":
                turns.append(Turn("user", text))
            case "assistant":
                turns.append(_assistant(message, text))
                calls = message.get("tool_calls")
                called = {str(call.get("id")): at for at, call in enumerate(calls)} if calls else {}
            case _:
                raise bad_request(f"messages[{i}] has the unknown role {role!r}", "messages")
    return turns, left_out


def _assistant(message: dict[str, Any], text: str) -> Turn:
    raw_calls = message.get("tool_calls")
    if raw_calls and not isinstance(raw_calls, list):
        raise bad_request("tool_calls must be a list", "messages")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    hint, known = None, message.get(STEP_KEY)
    if raw_calls:
        hints = (step_of(call.get("id")) for call in raw_calls if isinstance(call, dict))
        hint = next((found for found in hints if found is not None), None)
    if hint is None and isinstance(known, int):
        hint = known
    return Turn(
        "assistant",
        text,
        clean(reasoning) if isinstance(reasoning, str) and reasoning.strip() else None,
        tuple(read_call(call) for call in raw_calls) if raw_calls else (),
        hint,
    )
