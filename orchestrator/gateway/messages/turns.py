"""Messages as the gateway compares and renders them: flattened, folded, with arguments as canonical JSON.

Every wire is first converted to OpenAI's chat form; `read_messages` then makes `Turn`s of it. The rules are prefix-stable: the reading of a
message depends only on the messages before it, so a longer history begins with the same turns.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard

import msgspec

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.messages.answers import UNKNOWN, Answers, Calls
from orchestrator.gateway.messages.content import LEFT_KEY, flatten, of_unknown_role, unknown_role
from orchestrator.gateway.messages.foreign_keys import ARGUMENTS, CONTENTS, RESULT_IDS, check_key
from orchestrator.gateway.problems import bad_request
from orchestrator.pool.sanitize import clean, clean_json

Role = Literal["system", "user", "assistant", "tool"]

MAX_DEPTH = 64  # levels of objects and arrays in a call or a tool: their readers recurse
STEP_KEY = "penstock_step"  # key of a chat-form assistant message: the step that a dialect recognised in the wire's own ids
INSTRUCTIONS_KEY = "penstock_instructions"  # key of the first message: it applies to this request only
_RESULTS = ("tool", "function")  # roles of tool results
_ROLES = ("system", "developer", "user", "assistant", *_RESULTS)
_MINTED = re.compile(r"(?:call|fc|ctc|lsh|sh|apc|msg|rs)_s([0-9]{1,9})(?:_[0-9]+)?")
_FORMS = (("custom", "input"), ("function", "arguments"))  # keys of a call, and of its arguments below
_WHOLE = re.compile(r"[0-9](?:\.0|[eE])")  # a place where a number may be an integer in another spelling


class CanonicalCall(msgspec.Struct, frozen=True, gc=False):
    """One tool call. `arguments` is canonical JSON (sorted keys, no spaces), so that spacing and key order do not matter."""

    name: str
    arguments: str

    def mapping(self) -> dict[str, Any]:
        """The arguments as a mapping, as templates need them."""
        value = json.loads(self.arguments)
        return value if isinstance(value, dict) else {"input": value}


class Turn(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One message. `hint`: the step that an assistant message's tool-call ids name, if they are ours; never part of `same`. `answers`: the call
    whose result it is, None where unknown (in an old record). `left_out`: types of the parts that are not in `text`.
    `instructions`: a system message that applies to one request only. It is a struct because every call creates one for each message of its
    history."""

    role: Role
    text: str
    reasoning: str | None = None
    calls: tuple[CanonicalCall, ...] = ()
    hint: int | None = None
    answers: Answers | None = None
    left_out: tuple[str, ...] = ()
    instructions: bool = False

    def same(self, other: "Turn") -> bool:
        """Whether `other`, sent by a harness, is this message. Missing reasoning matches any reasoning; present reasoning must be equal."""
        if self.role != other.role or (
            (self.calls or other.calls) and not _same_calls(self.calls, other.calls)
        ):
            return False
        if self.text != other.text and (self.role != "assistant" or self.text.strip() != other.text.strip()):
            return False
        if self.role != "assistant":
            return self.answers is None or other.answers is None or self.answers == other.answers
        return self.same_reasoning(other)

    def same_reasoning(self, other: "Turn") -> bool:
        """Whether `other`, sent by a harness, has this reasoning or none."""
        return other.reasoning is None or (self.reasoning or "").strip() == other.reasoning.strip()

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Equal for two assistant messages exactly if they are the same, apart from their reasoning."""
        return self.text.strip(), tuple((call.name, _whole_numbers(call.arguments)) for call in self.calls)

    def plain(self) -> dict[str, Any]:
        """The JSON form that is recorded; `from_plain` reads it back."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.reasoning is not None:
            message["reasoning"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"name": call.name, "arguments": json.loads(call.arguments)} for call in self.calls
            ]
        if self.answers is not None:
            message["answers"] = self.answers.plain()
        if self.left_out:
            message["left_out"] = list(self.left_out)
        if self.instructions:
            message["instructions"] = True
        return message

    @classmethod
    def from_plain(cls, message: dict[str, Any]) -> "Turn":
        """The inverse of `plain`."""
        calls = tuple(
            CanonicalCall(call["name"], canonical_json(call["arguments"]))
            for call in message.get("tool_calls") or []
        )
        return cls(
            role=message.get("role") or "user",  # a forged step may lack it
            text=message.get("content") or "",
            reasoning=message.get("reasoning"),
            calls=calls,
            answers=Answers.from_plain(message["answers"]) if "answers" in message else None,
            left_out=tuple(message.get("left_out") or ()),
            instructions=bool(message.get("instructions")),
        )


def _same_calls(one: tuple[CanonicalCall, ...], other: tuple[CanonicalCall, ...]) -> bool:
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
    """One spelling per JSON value, in a form that the data pool can store."""
    return json.dumps(clean_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def too_deep(value: Any) -> bool:
    """Whether a JSON value has more than MAX_DEPTH levels."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
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
    """The id of a minted tool call. All wires replay it verbatim, so it identifies the step of the call."""
    return f"call_s{step}_{position}"


def step_of(identifier: object) -> int | None:
    """The step of an id that a wire minted (`call_id`, or the id of an item), else None."""
    found = _MINTED.fullmatch(identifier) if isinstance(identifier, str) else None
    return int(found[1]) if found is not None else None


def _function_of(raw: Any) -> dict[str, Any]:
    """The name and arguments of a call, whatever its form."""
    body = raw if isinstance(raw, dict) else {}
    custom = body.get("custom")
    if isinstance(custom, dict):
        body = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    function = body.get("function")
    return function if isinstance(function, dict) else body


def named(name: Any) -> TypeGuard[str]:
    """Whether a call's name is one."""
    return isinstance(name, str) and bool(name)


def _check_arguments(call: Mapping[str, Any]) -> None:
    """Raise Problem 400 naming arguments of a call under another key, or next to its function."""
    where = "a tool call of the history"
    form, own = next((kind for kind in _FORMS if isinstance(call.get(kind[0]), dict)), ("", "arguments"))
    inner = call[form] if form else call
    check_key(inner, own, ARGUMENTS, where, "messages")
    if form:
        check_key({**call, f"{form}.{own}": inner.get(own)}, f"{form}.{own}", ARGUMENTS, where, "messages")


def read_call(raw: Any) -> CanonicalCall:
    """A tool call of a history, of a function or of a custom tool. Arguments that are not a JSON object become {"input": …}, so that they do not
    break a template."""
    function = _function_of(raw)
    name, arguments = function.get("name"), function.get("arguments")
    if not named(name):
        raise bad_request("a tool call of the history has no function name", "messages")
    _check_arguments(raw)
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
        raise bad_request(f"the arguments of a call of {quoted(name)} are nested too deeply", "messages")
    return CanonicalCall(clean(name), canonical_json(arguments))


def read_messages(raw: Any, *, past: bool = False) -> tuple[list[Turn], int]:
    """(turns, parts left out) of a chat-form message list. Raises Problem 400 naming the malformed part. `past`: all of it is a history, because
    the session has a step already (`content.py`).

    Some messages are folded, because templates drop or refuse them: a system message after the first place and a tool result without a call
    become user messages; `developer` is system. Parallel tool results get the order of their calls, because many templates do not show ids.
    """
    if not isinstance(raw, list) or not raw:
        raise bad_request("messages must be a non-empty list", "messages")
    turns: list[Turn] = []
    calls = Calls()
    pending_calls = 0  # calls of the last assistant message
    results: list[tuple[int, Turn]] = []  # of those calls, so far without interruption
    for i, message in enumerate(raw):
        if not isinstance(message, dict):
            raise bad_request(f"messages[{i}] is not an object", "messages")
        role = message.get("role")
        text, left_out = _text_of(message, f"messages[{i}]", past=past)
        if role in _RESULTS:
            check_key(message, "tool_call_id", RESULT_IDS, f"messages[{i}]", "messages")
            answers = calls.answered(message)
            if not pending_calls:
                turns.append(Turn(role="user", text=text, left_out=left_out))
                continue
            position = answers.call if answers.back == 0 and answers != UNKNOWN else pending_calls
            results.append((position, Turn(role="tool", text=text, answers=answers, left_out=left_out)))
            continue
        turns += _in_order(results)
        results = []
        match role:
            case "system" | "developer":
                for_one_request = bool(message.get(INSTRUCTIONS_KEY)) and i == 0
                turn_role: Role = "system" if i == 0 else "user"
                turns.append(Turn(role=turn_role, text=text, left_out=left_out, instructions=for_one_request))
            case "user":
                turns.append(Turn(role="user", text=text, left_out=left_out))
            case "assistant":
                turn, ids = _assistant(message, text, left_out, past=past)
                past = True
                turns.append(turn)
                pending_calls = len(ids)
                if ids:
                    calls.made(ids, [call.name for call in turn.calls])
            case _ if past:
                text, mark = of_unknown_role(role, text)
                turns.append(Turn(role="user", text=text, left_out=(*left_out, *mark)))
            case _:
                raise unknown_role(role, f"messages[{i}]", _ROLES, "messages")
    turns += _in_order(results)
    return turns, sum(len(turn.left_out) for turn in turns)


def _in_order(results: Sequence[tuple[int, Turn]]) -> list[Turn]:
    return [turn for _, turn in sorted(results, key=lambda result: result[0])]


def _text_of(message: dict[str, Any], where: str, *, past: bool) -> tuple[str, tuple[str, ...]]:
    """A message's text, and the kinds of its parts that are left out."""
    role, content = message.get("role"), message.get("content")
    from_assistant = role == "assistant"
    left_out: tuple[str, ...] = ()
    if isinstance(content, str):  # nearly all contents are
        text = clean(content)
    else:
        check_key(message, "content", CONTENTS, where, "messages")
        past = past or from_assistant or role in _RESULTS
        text, left_out = flatten(content, where, past=past, shown=not from_assistant)
    if not from_assistant and message.get("tool_calls"):
        raise bad_request(
            f"{where}.tool_calls is not read: only a message of the assistant has calls", "messages"
        )
    if from_assistant and isinstance(refusal := message.get("refusal"), str):
        text = _with_refusal(text, clean(refusal))
    elif from_assistant and refusal is not None:
        left_out += ("refusal",)
    if from_assistant and isinstance(message.get("audio"), dict):  # the provider keeps the spoken audio
        left_out += ("audio",)
    if LEFT_KEY in message:
        left_out += _noted(message[LEFT_KEY])
    return text, left_out


def _with_refusal(text: str, refusal: str) -> str:
    """An answer's text and its refusal. Some programs write one sentence into both fields."""
    return text if refusal in text else f"{text}\n{refusal}" if text else refusal


def _noted(kinds: Any) -> tuple[str, ...]:
    """The types that a dialect noted."""
    return tuple(str(kind)[:64] for kind in kinds) if isinstance(kinds, list | tuple) else ()


NAMELESS = "a call without a name"


def _strange(call: Any, *, past: bool) -> str | None:
    """The kind of a call of a history that is left out, because no reply of ours has such a call: its unknown type, where it has no function,
    or, in the `past`, a call without a name. None: the call is read."""
    kind = call.get("type") if isinstance(call, dict) else None
    of_known_form = isinstance(call, dict) and any(
        isinstance(call.get(form), dict) for form in ("function", "custom")
    )
    if isinstance(kind, str) and kind not in ("function", "custom") and not of_known_form:
        return clean(kind[:64])
    return NAMELESS if past and not named(_function_of(call).get("name")) else None


def _assistant(
    message: dict[str, Any], text: str, left_out: tuple[str, ...], *, past: bool
) -> tuple[Turn, list[object]]:
    """(the turn, the ids of its calls)."""
    raw_calls = message.get("tool_calls") or []
    if not isinstance(raw_calls, list):
        if not past:
            raise bad_request("tool_calls must be a list", "messages")
        raw_calls = [raw_calls]
    # OpenAI's legacy form: one call without an id.
    if not raw_calls and message.get("function_call") is not None:
        raw_calls = [message["function_call"]]
    kinds = [_strange(call, past=past) for call in raw_calls]
    left_out += tuple(kind for kind in kinds if kind is not None)
    raw_calls = [call for call, kind in zip(raw_calls, kinds, strict=True) if kind is None]
    calls = tuple(read_call(call) for call in raw_calls)
    legacy = message.get("function_call")
    if legacy is not None and _strange(legacy, past=past) is None and read_call(legacy) not in calls:
        raise bad_request("a message has tool_calls and another function_call: send one of them", "messages")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    for call in raw_calls:
        check_key(call, "id", RESULT_IDS, "a tool call of the history", "messages")
    ids = [call.get("id") for call in raw_calls]
    hint, known = (
        next((found for found in map(step_of, ids) if found is not None), None),
        message.get(STEP_KEY),
    )
    if hint is None and isinstance(known, int):
        hint = known
    turn = Turn(
        role="assistant",
        text=text,
        reasoning=clean(reasoning) if isinstance(reasoning, str) and reasoning.strip() else None,
        calls=calls,
        hint=hint,
        left_out=left_out,
    )
    return turn, ids
