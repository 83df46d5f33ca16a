"""Passes a benchmark's output on and fails where a bar does not hold: `ops/bench NAME --json | python -m orchestrator.benchmarks.held`.

| bar | fails on shared cores | with `--strict` |
|---|---|---|
| ratio, share, bytes | beyond its target | beyond its target |
| CPU time | beyond twice its target: what the same work takes while others use the caches and the core's other thread | beyond its target |
| seconds of the clock, things per second of it | beyond five times its target: more than others on the machine explain | beyond its target |

`--strict` is for a release, on an idle machine: `ops/bench NAME --strict`.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

OF_THE_CLOCK = frozenset({"s", "ms", "1/s", "tok/s"})  # units
CROWDED = 2.0  # how much more CPU time than on an idle machine
BUSY = 5.0  # how much more time than on an idle machine


def missed(bars: list[Mapping[str, Any]], *, strict: bool = False) -> list[str]:
    """The bars that must hold here (`strict`: on an idle machine) and do not, as sentences."""
    return [
        f"{bar['name']} is {bar['value']:g} {bar['unit']}, the target is {bar['target']:g}"
        for bar in bars
        if not bar["holds"] and (strict or not _excused(bar))
    ]


def _excused(bar: Mapping[str, Any]) -> bool:
    """Within what others on the machine explain; a figure is missed above its target, or below it."""
    times = max(bar["value"], bar["target"]) / max(min(bar["value"], bar["target"]), 1e-9)
    if bar["unit"] in OF_THE_CLOCK:
        return bool(times <= BUSY)
    return "CPU" in bar["unit"] and times <= CROWDED


def main(output: TextIO, *, strict: bool = False) -> int:
    last = ""
    for line in output:
        print(line, end="", flush=True)
        last = line if line.strip() else last
    try:
        bars = json.loads(last)["bars"]
    except (ValueError, KeyError, TypeError):
        print("the benchmark did not end with its bars", file=sys.stderr)
        return 1
    found = missed(bars, strict=strict)
    for sentence in found:
        print(f"MISSED: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fails where a bar of a benchmark does not hold.")
    parser.add_argument(
        "--strict", action="store_true", help="every bar at its target: wants an idle machine"
    )
    sys.exit(main(sys.stdin, strict=parser.parse_args().strict))
