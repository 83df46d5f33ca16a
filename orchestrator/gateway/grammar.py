r"""How models write tool calls inside their call markers. Each reader takes the text of one marked block and gives its calls, or None where
it does not fit: nothing is repaired, nothing is left out.

    json       {"name": "f", "arguments": {"a": 1}}                                          Qwen3, Hermes
    invoke     <invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>               MiniMax-M2
    function   <function=f>\n<parameter=a>\n1\n</parameter>\n</function>                     Qwen3-Coder

A block of `invoke` or `function` may hold several calls. Their values are bare text, which only the tool's schema can type: see `typed`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from orchestrator.gateway.messages import Call, canonical_json, too_deep
from orchestrator.gateway.render import CallSyntax
from orchestrator.gateway.schema import declared, fits, of_type, parameters_of

Tools = Sequence[Mapping[str, Any]]


def read_calls(syntax: CallSyntax, block: str, tools: Tools) -> tuple[Call, ...] | None:
    """The calls of a block, at least one, or None. With `tools`, every call must fit one of them."""
    reader = _READERS.get(syntax)
    return reader(block, tools) if reader is not None else None


def typed(text: str, types: Sequence[str]) -> Any:
    """A bare value as a parameter of `types` takes it; a text that fits none stays a string, which then does not fit.

    Null, objects and arrays can hardly be meant as strings and are tried first where they are declared; then the types in the schema's
    order. So "3" for a string is "3", "null" for a nullable string is null, and every other text for one is itself.
    """
    exact = "string" not in types or text == text.strip()
    first = [name for name in types if exact and name in ("null", "object", "array")]
    for name in [*first, *(name for name in types if name not in first)]:
        if name == "string":
            return text
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if of_type(value, [name]):
            return value
    return text


def _json(block: str, tools: Tools) -> tuple[Call, ...] | None:
    try:
        value = msgspec.json.decode(block)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    call = _call(value["name"], arguments, tools)
    return None if call is None else (call,)


class _Tags:
    """Calls and parameters between tags. A closing tag counts only where the grammar can go on after it, so that a value may quote one."""

    def __init__(self, call: str, call_end: str, parameter: str, parameter_end: str, *, padded: bool) -> None:
        self._call, self._parameter = re.compile(rf"\s*{call}"), re.compile(rf"\s*{parameter}")
        self._call_end = re.compile(rf"\s*{call_end}(?=\s*(?:{call}|\Z))")
        self._value_end = re.compile(rf"{parameter_end}(?=\s*(?:{parameter}|{call_end}\s*(?:{call}|\Z)))")
        self._padded = padded  # a line break after the opening and before the closing tag belongs to neither

    def __call__(self, block: str, tools: Tools) -> tuple[Call, ...] | None:
        calls, at = [], 0
        while block[at:].strip():
            opened = self._call.match(block, at)
            if opened is None:
                return None
            schema, at = parameters_of(opened[1], tools) or {}, opened.end()
            arguments: dict[str, Any] = {}
            while (parameter := self._parameter.match(block, at)) is not None:
                ended = self._value_end.search(block, parameter.end())
                if ended is None or parameter[1] in arguments:
                    return None
                text = block[parameter.end() : ended.start()]
                if self._padded:
                    text = text.removeprefix("\n").removesuffix("\n")
                arguments[parameter[1]] = typed(text, declared(parameter[1], schema))
                at = ended.end()
            closed = self._call_end.match(block, at)
            call = _call(opened[1], arguments, tools)
            if closed is None or call is None:
                return None
            calls.append(call)
            at = closed.end()
        return tuple(calls) or None


def _call(name: str, arguments: Mapping[str, Any], tools: Tools) -> Call | None:
    if not name or too_deep(arguments) or (tools and not fits(name, arguments, tools)):
        return None
    return Call(name, canonical_json(arguments))


_READERS: dict[str, Callable[[str, Tools], tuple[Call, ...] | None]] = {
    "json": _json,
    "invoke": _Tags(
        r'<invoke name="([^"<>]+)">',
        "</invoke>",
        r'<parameter name="([^"<>]+)">',
        "</parameter>",
        padded=False,
    ),
    "function": _Tags(
        r"<function=([^<>\n]+)>", "</function>", r"<parameter=([^<>\n]+)>", "</parameter>", padded=True
    ),
}
