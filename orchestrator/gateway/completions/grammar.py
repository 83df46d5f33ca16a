r"""How models write tool calls inside their call markers. Each reader takes the text of one marked block and returns its calls, or None if
the block does not fit. A reader repairs nothing and skips nothing.

    json       {"name": "f", "arguments": {"a": 1}}                                          Qwen3, Hermes
    invoke     <invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>               MiniMax-M2
    function   <function=f>\n<parameter=a>\n1\n</parameter>\n</function>                     Qwen3-Coder

A block of `invoke` or `function` may contain several calls. Their values are bare text, and only the tool's schema gives types: see `typed`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from orchestrator.gateway.completions.schema import (
    declared,
    fits,
    of_type,
    parameters_of,
)
from orchestrator.gateway.messages.turns import CanonicalCall, canonical_json, too_deep
from orchestrator.gateway.messages.typed_calls import fits_item
from orchestrator.gateway.render import CallSyntax

Tools = Sequence[Mapping[str, Any]]


def read_calls(syntax: CallSyntax, block: str, tools: Tools) -> tuple[CanonicalCall, ...] | None:
    """The calls of a block, at least one, or None. Every call must fit one of `tools`."""
    reader = _READERS.get(syntax)
    return reader(block, tools) if reader is not None else None


def typed(text: str, types: Sequence[str]) -> Any:
    """Convert a bare value to one of `types`. A text that fits none of them stays a string, which then fails the check.

    A text such as null, an object or an array is hardly ever meant as a string, so these types are tried first where they are declared. The
    other types follow in the schema's order. "3" for a string is "3", "null" for a nullable string is null, any other text is itself.
    """
    exact = "string" not in types or text == text.strip()
    exact_types = [name for name in types if exact and name in ("null", "object", "array")]
    for name in [*exact_types, *(name for name in types if name not in exact_types)]:
        if name == "string":
            return text
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if of_type(value, [name]):
            return value
    return text


def _json(block: str, tools: Tools) -> tuple[CanonicalCall, ...] | None:
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
    """Calls and parameters between tags. A closing tag counts only where the grammar can continue after it, so a value may quote one."""

    def __init__(self, *, call: str, call_end: str, parameter: str, parameter_end: str, padded: bool) -> None:
        self._call, self._parameter = re.compile(rf"\s*{call}"), re.compile(rf"\s*{parameter}")
        self._call_end = re.compile(rf"\s*{call_end}(?=\s*(?:{call}|\Z))")
        self._value_end = re.compile(rf"{parameter_end}(?=\s*(?:{parameter}|{call_end}\s*(?:{call}|\Z)))")
        self._padded = padded  # the line breaks next to the tags are not part of the value

    def __call__(self, block: str, tools: Tools) -> tuple[CanonicalCall, ...] | None:
        calls, at = [], 0
        while block[at:].strip():
            call_start = self._call.match(block, at)
            if call_start is None:
                return None
            schema, at = parameters_of(call_start[1], tools) or {}, call_start.end()
            arguments: dict[str, Any] = {}
            while (parameter := self._parameter.match(block, at)) is not None:
                value_end = self._value_end.search(block, parameter.end())
                if value_end is None or parameter[1] in arguments:
                    return None
                text = block[parameter.end() : value_end.start()]
                if self._padded:
                    text = text.removeprefix("\n").removesuffix("\n")
                arguments[parameter[1]] = typed(text, declared(parameter[1], schema))
                at = value_end.end()
            call_end = self._call_end.match(block, at)
            call = _call(call_start[1], arguments, tools)
            if call_end is None or call is None:
                return None
            calls.append(call)
            at = call_end.end()
        return tuple(calls) or None


def _call(name: str, arguments: Mapping[str, Any], tools: Tools) -> CanonicalCall | None:
    if not name or too_deep(arguments) or not fits(name, arguments, tools):
        return None
    if not fits_item(name, arguments, parameters_of(name, tools)):
        return None
    return CanonicalCall(name, canonical_json(arguments))


_READERS: dict[str, Callable[[str, Tools], tuple[CanonicalCall, ...] | None]] = {
    "json": _json,
    "invoke": _Tags(
        call=r'<invoke name="([^"<>]+)">',
        call_end="</invoke>",
        parameter=r'<parameter name="([^"<>]+)">',
        parameter_end="</parameter>",
        padded=False,
    ),
    "function": _Tags(
        call=r"<function=([^<>\n]+)>",
        call_end="</function>",
        parameter=r"<parameter=([^<>\n]+)>",
        parameter_end="</parameter>",
        padded=True,
    ),
}
