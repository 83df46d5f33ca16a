"""Passes a benchmark's output on and fails if a bar is missed: `ops/bench NAME --json | python -m ops.lab.benchmarks.check_targets`.

| bar | fails on shared cores | with `--strict` |
|---|---|---|
| ratio, share, bytes | beyond its target | beyond its target |
| CPU time | beyond twice its target: the cost of the same work while others use the caches and the core's other thread | beyond its target |
| wall time, rates per second of wall time | beyond five times its target: more than other load on the machine explains | beyond its target |

Targets are those of the reference machine. Twice and five times are multiplied by this machine's slowness (ops/tiers.py), as the tiers' budgets are.
`--strict` is for a release, on an idle machine: `ops/bench NAME --strict`.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from ops.tiers import slowness

OF_THE_CLOCK = frozenset({"s", "ms", "1/s", "tok/s"})  # units
CROWDED = 2.0  # how much more CPU time than on an idle machine
BUSY = 5.0  # how much more time than on an idle machine


def missed(bars: list[Mapping[str, Any]], *, slow: float = 1.0, strict: bool = False) -> list[str]:
    """The missed bars that must hold here (`strict`: on an idle machine), as sentences. `slow`: this machine's slowness, at least 1."""
    return [
        f"{bar['name']} is {bar['value']:g} {bar['unit']}, the target is {bar['target']:g}"
        for bar in bars
        if not bar["holds"] and (strict or not _excused(bar, slow))
    ]


def _excused(bar: Mapping[str, Any], slow: float) -> bool:
    """Whether a slow machine or other load on it explains the miss; a figure may be too high or too low."""
    times = max(bar["value"], bar["target"]) / max(min(bar["value"], bar["target"]), 1e-9)
    if bar["unit"] in OF_THE_CLOCK:
        return bool(times <= BUSY * slow)
    return "CPU" in bar["unit"] and times <= CROWDED * slow


def main(output: TextIO, *, slow: float = 1.0, strict: bool = False) -> int:
    last_line = ""
    for line in output:
        print(line, end="", flush=True)
        last_line = line if line.strip() else last_line
    try:
        bars = json.loads(last_line)["bars"]
    except (ValueError, KeyError, TypeError):
        print("the benchmark did not end with its bars", file=sys.stderr)
        return 1
    found = missed(bars, slow=slow, strict=strict)
    for sentence in found:
        print(f"MISSED: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fails where a bar of a benchmark does not hold.")
    parser.add_argument(
        "--strict", action="store_true", help="every bar at its target: wants an idle machine"
    )
    sys.exit(main(sys.stdin, slow=slowness(), strict=parser.parse_args().strict))
