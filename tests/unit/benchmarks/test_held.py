"""Which bars of a benchmark may fail a run on shared cores."""

import io
import json

import pytest

from orchestrator.benchmarks.bars import at_least, at_most
from orchestrator.benchmarks.held import main


def ended(*bars: object, before: str = "a table\n") -> io.StringIO:
    return io.StringIO(f"{before}{json.dumps({'bars': bars})}\n")


def bar(name: str, value: float, unit: str, target: float) -> dict[str, object]:
    found = at_most(name, value, unit, target)
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": found.holds}


def test_a_missed_ratio_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ended(bar("ours_over_copy", 12, "ratio", 10), bar("wall", 1, "ms", 5))) == 1
    said = capsys.readouterr()
    assert said.out.startswith("a table\n")
    assert said.err == "MISSED: ours_over_copy is 12 ratio, the target is 10\n"


def test_cpu_time_fails_at_twice_its_target_and_wall_time_never() -> None:
    assert main(ended(bar("claim_cpu", 80, "CPU-ms", 50))) == 0
    assert main(ended(bar("claim_cpu", 101, "CPU-ms", 50))) == 1
    slow = {"name": "calls", "value": 240, "unit": "1/CPU-s", "target": 500, "holds": False}
    assert main(ended(slow)) == 1
    assert main(ended({**slow, "value": 260})) == 0
    assert main(ended(bar("claim_p95", 80, "ms", 50), bar("reconcile", 40, "s", 30))) == 0


def test_output_without_bars_is_a_failure() -> None:
    assert main(io.StringIO("a table\n")) == 1
    assert main(io.StringIO("")) == 1


def test_a_bar_holds_at_its_target_and_not_beyond_it() -> None:
    assert at_most("x", 50.0, "ms", 50.0).holds and not at_most("x", 50.1, "ms", 50.0).holds
    assert at_least("x", 3000.0, "1/s", 3000.0).holds and not at_least("x", 2999.0, "1/s", 3000.0).holds
