"""Runs a benchmark and fails if one of its bars is missed: `python -m ops.lab.benchmarks.check_targets pool --small`.

| bar | fails | with `--strict` |
|---|---|---|
| ratio, share, count, bytes | beyond its target | beyond its target |
| CPU time | beyond twice its target: the cost of the same work while others use the caches and the core's other thread | beyond its target |
| wall time, rates per second of wall time | never: on shared cores the clock reports, it does not judge | beyond its target |

A bar fails when two of three draws miss it: their median does. A second and a third draw are made only where one is missed.
Targets are those of the reference machine. Twice the target is multiplied by this machine's slowness (ops/tiers.py).
`--strict`: one draw, for a release on an idle machine (`ops/bench NAME --strict`). `--dry`: the benchmark works and ends with its bars; none judges.
Run it from the root of the repository.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ops.tiers import slowness

OF_THE_CLOCK = frozenset({"s", "ms", "1/s", "tok/s"})  # units
CROWDED = 2.0  # how much more CPU time than on an idle machine
DRAWS = 3
KEYS = {"name", "value", "unit", "target", "holds"}

Bar = Mapping[str, Any]


def judges(bar: Bar, slow: float, *, strict: bool = False) -> bool:
    """Whether a missed bar fails the run. `slow`: this machine's slowness, at least 1; `strict`: on an idle machine."""
    if strict:
        return True
    if bar["unit"] in OF_THE_CLOCK:
        return False
    # Too high or too low.
    times = max(bar["value"], bar["target"]) / max(min(bar["value"], bar["target"]), 1e-9)
    return not ("CPU" in bar["unit"] and times <= CROWDED * slow)


def draw(command: Sequence[str]) -> list[Bar] | None:
    """Run the benchmark once, its output passed on; None if it failed or did not end with its bars."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        last_line = ""
        for line in running.stdout:
            print(line, end="", flush=True)
            last_line = line if line.strip() else last_line
    if running.returncode != 0:
        print(f"the benchmark ended with status {running.returncode}", file=sys.stderr)
        return None
    try:
        bars = json.loads(last_line)["bars"]
        if all(set(bar) >= KEYS for bar in bars):
            return list(bars)
    except (ValueError, KeyError, TypeError):
        pass
    print("the benchmark did not end with its bars", file=sys.stderr)
    return None


def main(command: Sequence[str], *, slow: float = 1.0, strict: bool = False, dry: bool = False) -> int:
    """Draw until every bar is decided; 1 if one is missed. Prints each missed bar, and each that the clock missed and that only reports."""
    misses: Counter[str] = Counter()
    draws = 1 if strict or dry else DRAWS
    needed = draws // 2 + 1
    for number in range(1, draws + 1):
        bars = draw(command)
        if bars is None:
            return 1
        for bar in bars:
            if bar["holds"]:
                continue
            figures = f"{bar['name']} is {bar['value']:g} {bar['unit']}, the target is {bar['target']:g}"
            if dry or not judges(bar, slow, strict=strict):
                print(f"over its target, reported only: {figures}", file=sys.stderr)
                continue
            misses[bar["name"]] += 1
            verdict = "MISSED" if misses[bar["name"]] >= needed else "missed in this draw"
            print(f"{verdict}: {figures}", file=sys.stderr)
        if not misses:
            return 0
        if max(misses.values()) >= needed:
            return 1
        if number < draws:
            print(f"draw {number + 1} of at most {draws}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fails where a bar of a benchmark does not hold.")
    parser.add_argument(
        "--strict", action="store_true", help="every bar at its target: wants an idle machine"
    )
    parser.add_argument("--dry", action="store_true", help="the benchmark works; no bar judges")
    parser.add_argument("name", help="of ops/bench")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the benchmark")
    given = parser.parse_args()
    sys.exit(
        main(
            ["ops/bench", given.name, *given.arguments, "--json"],
            slow=slowness(),
            strict=given.strict,
            dry=given.dry,
        )
    )
