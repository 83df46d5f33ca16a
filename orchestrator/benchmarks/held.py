"""Passes a benchmark's output on and fails where a bar does not hold: `ops/bench NAME --json | python -m orchestrator.benchmarks.held`.

Only bars that mean something on shared cores can fail: ratios, shares and bytes at their target, CPU time at twice its target, because the same work
takes up to twice the CPU time while others use the caches and the other thread of the core. A missed bar in seconds of the clock, or in things
per second of it, is in the table and passed over: somebody else may have had the machine.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

OF_THE_CLOCK = frozenset({"s", "ms", "1/s", "tok/s"})  # units
CROWDED = 2.0  # how much more CPU time than on an idle machine


def missed(bars: list[Mapping[str, Any]]) -> list[str]:
    """The bars that must hold anywhere and do not, as sentences."""
    return [
        f"{bar['name']} is {bar['value']:g} {bar['unit']}, the target is {bar['target']:g}"
        for bar in bars
        if not bar["holds"] and bar["unit"] not in OF_THE_CLOCK and not _excused(bar)
    ]


def _excused(bar: Mapping[str, Any]) -> bool:
    """CPU time within what a crowd explains; a figure is missed above its target, or below it."""
    times = max(bar["value"], bar["target"]) / max(min(bar["value"], bar["target"]), 1e-9)
    return "CPU" in bar["unit"] and times <= CROWDED


def main(output: TextIO) -> int:
    last = ""
    for line in output:
        print(line, end="", flush=True)
        last = line if line.strip() else last
    try:
        bars = json.loads(last)["bars"]
    except (ValueError, KeyError, TypeError):
        print("the benchmark did not end with its bars", file=sys.stderr)
        return 1
    found = missed(bars)
    for sentence in found:
        print(f"MISSED: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin))
