"""One line of a benchmark's verdict."""

from typing import Any


def bar(name: str, value: float, unit: str, target: float, *, at_most: bool = False) -> dict[str, Any]:
    """A measured value and its target: the value must reach it, or with `at_most` must not exceed it."""
    value = round(value, 4)
    reached = value <= target if at_most else value >= target
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": reached}
