"""Which bars of a benchmark may fail a run on shared cores."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops.lab.benchmarks.check_targets import main
from ops.lab.benchmarks.pool.__main__ import FULL, SMALL, Size
from ops.lab.benchmarks.targets import at_least, at_most, quantile


def ended(*bars: object, before: str = "a table\n") -> io.StringIO:
    return io.StringIO(f"{before}{json.dumps({'bars': bars})}\n")


def bar(name: str, value: float, unit: str, target: float) -> dict[str, object]:
    found = at_most(name, value, unit, target)
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": found.holds}


def test_a_missed_ratio_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ended(bar("ours_over_copy", 12, "ratio", 10), bar("wall", 1, "ms", 5))) == 1
    output = capsys.readouterr()
    assert output.out.startswith("a table\n")
    assert output.err == "MISSED: ours_over_copy is 12 ratio, the target is 10\n"


def test_cpu_time_fails_beyond_twice_its_target() -> None:
    assert main(ended(bar("claim_cpu", 80, "CPU-ms", 50))) == 0
    assert main(ended(bar("claim_cpu", 101, "CPU-ms", 50))) == 1
    slow = {"name": "calls", "value": 240, "unit": "1/CPU-s", "target": 500, "holds": False}
    assert main(ended(slow)) == 1
    assert main(ended({**slow, "value": 260})) == 0


def test_time_is_excused_in_proportion_to_the_slowness_of_the_machine_and_a_ratio_is_not() -> None:
    seen_on_a_slow_machine = [
        {"name": "completions", "value": 210.859, "unit": "1/CPU-s", "target": 500, "holds": False},
        bar("added_p50", 15.633, "ms", 3),
    ]
    assert main(ended(*seen_on_a_slow_machine)) == 1
    assert main(ended(*seen_on_a_slow_machine), slow=1.65) == 0
    assert main(ended(bar("ours_over_copy", 10.1, "ratio", 10)), slow=3) == 1
    assert main(ended(seen_on_a_slow_machine[0]), slow=3, strict=True) == 1


BUSY = [("claim_p95", 249, "ms", 50), ("reconcile", 149, "s", 30), ("durability", 1.49, "ms", 0.3)]
BROKEN = [("claim_p95", 251, "ms", 50), ("reconcile", 151, "s", 30), ("durability", 1.51, "ms", 0.3)]


def rate(value: float, unit: str = "1/s") -> dict[str, object]:
    found = at_least("step_rows_per_s", value, unit, 3000)
    return {"name": found.name, "value": value, "unit": unit, "target": 3000, "holds": found.holds}


def test_time_of_the_clock_passes_on_a_busy_machine_and_fails_beyond_five_times_its_target(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(ended(*(bar(*one) for one in BUSY), rate(601), rate(601, "tok/s"))) == 0
    capsys.readouterr()
    for one in BROKEN:
        assert main(ended(bar(*one))) == 1
        assert capsys.readouterr().err.startswith(f"MISSED: {one[0]} is ")
    assert main(ended(rate(599))) == 1
    assert main(ended(rate(0, "tok/s"))) == 1


@pytest.mark.parametrize(
    "one", [bar("claim_p95", 50.1, "ms", 50), bar("claim_cpu", 50.1, "CPU-ms", 50), rate(2999)]
)
def test_a_release_fails_on_every_bar_beyond_its_target(
    one: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ended(one)) == 0
    assert main(ended(one, bar("other", 1, "s", 2)), strict=True) == 1
    assert capsys.readouterr().err.count("MISSED: ") == 1


def test_a_release_passes_where_every_bar_holds() -> None:
    assert main(ended(bar("claim_p95", 50, "ms", 50), rate(3000)), strict=True) == 0


SHIM = """#!/bin/sh
case "$*" in
  "-m ops.lab.benchmarks.check_targets"*) exec {python} "$@" ;;
  *) echo "$*"; echo '{bars}' ;;
esac
"""
REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_command_for_a_release_ends_as_its_bars_do(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    shutil.copy(REPOSITORY / "ops" / "bench", tmp_path / "ops")
    (tmp_path / "ops" / "setup").write_text("#!/bin/sh\n")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python, bars = tmp_path / "venv" / "bin" / "python", json.dumps({"bars": [rate(2999)]})
    python.write_text(SHIM.format(python=sys.executable, bars=bars))
    for program in (python, tmp_path / "ops" / "setup"):
        program.chmod(0o755)
    ended = {
        strict: subprocess.run(
            ["ops/bench", "pool", "--small", *strict],
            cwd=tmp_path,
            env={
                "PATH": "/usr/bin:/bin",
                "PENSTOCK_VENV": str(tmp_path / "venv"),
                "PYTHONPATH": str(REPOSITORY),
            },
            capture_output=True,
            text=True,
        )
        for strict in ((), ("--strict",))
    }
    plain, release = ended.values()
    assert (plain.returncode, plain.stdout) == (0, f"-m ops.lab.benchmarks.pool --small\n{bars}\n")
    assert release.returncode == 1 and "MISSED: step_rows_per_s is 2999 1/s" in release.stderr
    assert release.stdout == f"-m ops.lab.benchmarks.pool --small --json\n{bars}\n"


def test_output_without_bars_is_a_failure() -> None:
    assert main(io.StringIO("a table\n")) == 1
    assert main(io.StringIO("")) == 1


def test_a_bar_holds_at_its_target_and_not_beyond_it() -> None:
    assert at_most("x", 50.0, "ms", 50.0).holds and not at_most("x", 50.1, "ms", 50.0).holds
    assert at_least("x", 3000.0, "1/s", 3000.0).holds and not at_least("x", 2999.0, "1/s", 3000.0).holds


@pytest.mark.parametrize("size", [SMALL, FULL])
def test_one_slow_claim_does_not_fail_the_pools_bench(size: Size) -> None:
    assert quantile([1.0] * (size.claims - 1) + [1000.0], 0.95) == 1.0
