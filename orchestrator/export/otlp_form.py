"""OTLP's own encodings: key-values, times, the ids and enumerations of its JSON."""

import base64
from collections.abc import Mapping
from typing import Any

INTERNAL, CLIENT = 1, 3  # kinds of spans
FAILED = 2  # status code


def otlp_json(message: Any) -> Any:
    """Protobuf's JSON in OTLP's form: ids become hexadecimal and enumerations numbers."""
    if isinstance(message, list):
        return [otlp_json(each) for each in message]
    if not isinstance(message, dict):
        return message
    found = {}
    for name, value in message.items():
        if name in ("traceId", "spanId", "parentSpanId"):
            value = base64.b64decode(value).hex()
        elif name == "kind":
            value = {"SPAN_KIND_INTERNAL": INTERNAL, "SPAN_KIND_CLIENT": CLIENT}[value]
        elif name == "code" and isinstance(value, str):
            value = FAILED
        found[name] = otlp_json(value)
    return found


def attributes(common: Any, values: Mapping[str, Any]) -> list[Any]:
    """Key-values of OTLP; None is left out."""
    return [
        common.KeyValue(key=name, value=_value(common, value))
        for name, value in values.items()
        if value is not None
    ]


def _value(common: Any, value: Any) -> Any:
    match value:
        case bool():
            return common.AnyValue(bool_value=value)
        case int():
            return common.AnyValue(int_value=value)
        case float():
            return common.AnyValue(double_value=value)
        case str():
            return common.AnyValue(string_value=value)
        case _:
            return common.AnyValue(
                array_value=common.ArrayValue(values=[_value(common, each) for each in value])
            )


def nanos(seconds: float) -> int:
    """Nanoseconds since 1970."""
    return round(seconds * 1e6) * 1000  # at current dates a float is exact to microseconds, not nanoseconds
