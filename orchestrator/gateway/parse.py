"""From a finished action to a message: reasoning, text, tool calls. Not streaming, on ids, strict.

Grammar, on token ids (text that merely looks like a marker is text):

    action = [think_open reasoning think_close] text {call_open json call_close} [end]

A call is well-formed when its JSON is {"name": …, "arguments": {…}}, names a tool that the request offered, has the required
parameters, and every declared parameter has a declared type. Whatever does not fit the grammar is *ill-formed*: it is served as text, recorded
as such, and still trained on. Values are taken as they are: "3" stays a string, null stays null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.gateway.messages import Call, Turn, canonical_json
from orchestrator.gateway.render import Renderer
from orchestrator.pool.clean import clean

OK, ILL_FORMED = "ok", "ill_formed"

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A finished action as a message. status: ok | ill_formed."""

    turn: Turn
    status: str


def parse_action(
    renderer: Renderer,
    action: Sequence[int],
    tools: Sequence[Mapping[str, Any]],
    *,
    stop: str | None = None,
    calls_allowed: bool = True,
) -> Parsed:
    """Read one action. `stop`: the stop string that ended it, which is not part of the message. `calls_allowed`: False for
    tool_choice none."""
    marks = renderer.markers
    ids = list(action)
    while ids and ids[-1] in renderer.stop_ids:
        ids.pop()
    reasoning: str | None = None
    start = _skip_blank(renderer, ids)
    if renderer.starts_in_thinking or (start < len(ids) and ids[start] == marks.think_open):
        begin = start + 1 if start < len(ids) and ids[start] == marks.think_open else 0
        if marks.think_close not in ids[begin:]:
            # Never closed: whatever was tried inside is thought, not said.
            return Parsed(Turn("assistant", "", _thought(renderer, ids[begin:], stop)), ILL_FORMED)
        end = ids.index(marks.think_close, begin)
        reasoning = _thought(renderer, ids[begin:end], None)
        ids = ids[end + 1 :]
    said = _without(renderer.decode(ids), stop).strip()
    structure = {marks.think_open, marks.think_close, marks.call_open, marks.call_close, *renderer.stop_ids}
    if not structure & set(ids):
        return Parsed(Turn("assistant", clean(said), reasoning), OK)
    calls = _calls(renderer, ids, tools) if calls_allowed else None
    if calls is None:
        return Parsed(Turn("assistant", clean(said), reasoning), ILL_FORMED)
    text = renderer.decode(ids[: ids.index(marks.call_open)]).strip()
    return Parsed(Turn("assistant", clean(text), reasoning, calls), OK)


def _skip_blank(renderer: Renderer, ids: list[int]) -> int:
    at = 0
    while at < len(ids) and not renderer.decode(ids[at : at + 1]).strip():
        at += 1
    return at


def _without(text: str, stop: str | None) -> str:
    """`text` up to the stop string that ended it."""
    return text[: text.rindex(stop)] if stop and stop in text else text


def _thought(renderer: Renderer, ids: Sequence[int], stop: str | None) -> str | None:
    return clean(_without(renderer.decode(ids), stop).strip()) or None


def _calls(renderer: Renderer, ids: list[int], tools: Sequence[Mapping[str, Any]]) -> tuple[Call, ...] | None:
    """All calls from the first call_open to the end, or None when anything is out of place."""
    marks = renderer.markers
    if marks.call_open not in ids:
        return None
    first = ids.index(marks.call_open)
    inside = {marks.think_open, marks.think_close, *renderer.stop_ids}
    if inside & set(ids) or marks.call_close in ids[:first]:
        return None
    calls, rest = [], ids[first:]
    while rest:
        if rest[0] != marks.call_open or marks.call_close not in rest:
            return None
        end = rest.index(marks.call_close)
        if marks.call_open in rest[1:end]:
            return None
        call = _call(renderer.decode(rest[1:end]), tools)
        if call is None:
            return None
        calls.append(call)
        rest = rest[end + 1 :]
        rest = rest[_skip_blank(renderer, rest) :]
    return tuple(calls)


def _call(body: str, tools: Sequence[Mapping[str, Any]]) -> Call | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    if tools and not fits(value["name"], arguments, tools):
        return None
    return Call(value["name"], canonical_json(arguments))


def fits(name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call names an offered tool, has its required parameters, and gives the declared types."""
    functions = [tool.get("function", tool) for tool in tools]
    schema = next((f.get("parameters") or {} for f in functions if f.get("name") == name), None)
    if not isinstance(schema, Mapping):
        return False
    if any(key not in arguments for key in schema.get("required") or []):
        return False
    properties = schema.get("properties") or {}
    return all(_of_type(value, properties.get(key)) for key, value in arguments.items())


def _of_type(value: Any, schema: Any) -> bool:
    """Whether `value` has a type that `schema` allows; a schema that does not say allows all."""
    if not isinstance(schema, Mapping):
        return True
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            return any(_of_type(value, one) for one in schema[union])
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list):
        return True
    if value is None and schema.get("nullable"):
        return True
    if isinstance(value, bool):  # which Python counts among the integers
        return "boolean" in names
    return any(isinstance(value, _TYPES.get(str(name), (object,))) for name in names)
