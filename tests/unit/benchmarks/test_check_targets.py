"""Which bars of a benchmark may fail a run on shared cores."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.lab.benchmarks.check_targets import main
from ops.lab.benchmarks.pool.__main__ import FULL, SMALL, Size
from ops.lab.benchmarks.targets import at_least, at_most, quantile

DRAWN = """
import json, pathlib, sys
draws = json.loads(sys.argv[1])
count = pathlib.Path(sys.argv[2])
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
print("a table")
print(json.dumps({"bars": draws[min(number, len(draws) - 1)]}))
"""


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., tuple[int, int]]:
    """A benchmark with these bars in its draws, the last for all later ones: the status, and how many draws were made."""

    def run(*draws: list[dict[str, object]], **how: Any) -> tuple[int, int]:
        count = tmp_path / "count"
        count.unlink(missing_ok=True)
        status = main([sys.executable, "-c", DRAWN, json.dumps(draws), str(count)], **how)
        return status, int(count.read_text())

    return run


Judged = Callable[..., tuple[int, int]]


def bar(name: str, value: float, unit: str, target: float) -> dict[str, object]:
    found = at_most(name, value, unit, target)
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": found.holds}


HOLDS, MISSES = bar("ours_over_copy", 9, "ratio", 10), bar("ours_over_copy", 12, "ratio", 10)


def test_a_ratio_that_two_draws_miss_fails_and_is_named(
    judged: Judged, capfd: pytest.CaptureFixture[str]
) -> None:
    assert judged([MISSES, bar("wall", 1, "ms", 5)]) == (1, 2)
    output = capfd.readouterr()
    assert output.out.startswith("a table\n")
    assert output.err == (
        "missed in this draw: ours_over_copy is 12 ratio, the target is 10\ndraw 2 of at most 3\n"
        "MISSED: ours_over_copy is 12 ratio, the target is 10\n"
    )


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        ([[HOLDS]], (0, 1)),
        ([[MISSES], [HOLDS]], (0, 3)),
        ([[MISSES], [HOLDS], [MISSES]], (1, 3)),
        (
            [
                [MISSES, bar("other", 1, "B", 2)],
                [HOLDS, bar("other", 3, "B", 2)],
                [HOLDS, bar("other", 1, "B", 2)],
            ],
            (0, 3),
        ),
    ],
)
def test_the_median_of_three_draws_decides(
    draws: list[list[dict[str, object]]], expected: tuple[int, int], judged: Judged
) -> None:
    assert judged(*draws) == expected


def test_cpu_time_fails_beyond_twice_its_target_times_the_slowness_of_the_machine(judged: Judged) -> None:
    assert judged([bar("claim_cpu", 80, "CPU-ms", 50)]) == (0, 1)
    assert judged([bar("claim_cpu", 101, "CPU-ms", 50)])[0] == 1
    slow = {"name": "calls", "value": 240, "unit": "1/CPU-s", "target": 500, "holds": False}
    assert judged([slow])[0] == 1
    assert judged([slow], slow=1.65) == (0, 1)
    assert judged([{**slow, "value": 260}]) == (0, 1)
    assert judged([bar("ours_over_copy", 10.1, "ratio", 10)], slow=3)[0] == 1
    assert judged([slow], slow=3, strict=True) == (1, 1)


def rate(value: float, unit: str = "1/s") -> dict[str, object]:
    found = at_least("step_rows_per_s", value, unit, 3000)
    return {"name": found.name, "value": value, "unit": unit, "target": 3000, "holds": found.holds}


def test_the_clock_reports_and_does_not_judge(judged: Judged, capfd: pytest.CaptureFixture[str]) -> None:
    assert judged(
        [bar("claim_p95", 5000, "ms", 50), bar("reconcile", 900, "s", 30), rate(1), rate(0, "tok/s")]
    ) == (0, 1)
    assert capfd.readouterr().err.count("over its target, reported only: ") == 4


def test_a_dry_run_judges_no_bar_and_wants_bars(judged: Judged) -> None:
    assert judged([MISSES], dry=True) == (0, 1)
    assert judged([{"name": "without a target"}], dry=True) == (1, 1)


@pytest.mark.parametrize(
    "one", [bar("claim_p95", 50.1, "ms", 50), bar("claim_cpu", 50.1, "CPU-ms", 50), rate(2999)]
)
def test_a_release_fails_on_every_bar_beyond_its_target(
    one: dict[str, object], judged: Judged, capfd: pytest.CaptureFixture[str]
) -> None:
    assert judged([one]) == (0, 1)
    assert judged([one, bar("other", 1, "s", 2)], strict=True) == (1, 1)
    assert capfd.readouterr().err.count("MISSED: ") == 1


def test_a_release_passes_where_every_bar_holds(judged: Judged) -> None:
    assert judged([bar("claim_p95", 50, "ms", 50), rate(3000)], strict=True) == (0, 1)


SHIM = """#!/bin/sh
case "$*" in
  "-m ops.lab.benchmarks.check_targets"*) exec {python} "$@" ;;
  *) echo "$*"; echo '{bars}' ;;
esac
"""
REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_command_for_a_release_ends_as_its_bars_do(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    for name in ("bench", "help"):
        shutil.copy(REPOSITORY / "ops" / name, tmp_path / "ops")
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


@pytest.mark.parametrize("code", ["print('a table')", "", "print('{\"bars\": []}'); raise SystemExit(3)"])
def test_output_without_bars_and_a_benchmark_that_fails_are_failures(code: str) -> None:
    assert main([sys.executable, "-c", code]) == 1
    assert main([sys.executable, "-c", code], dry=True) == 1


def test_a_bar_holds_at_its_target_and_not_beyond_it() -> None:
    assert at_most("x", 50.0, "ms", 50.0).holds and not at_most("x", 50.1, "ms", 50.0).holds
    assert at_least("x", 3000.0, "1/s", 3000.0).holds and not at_least("x", 2999.0, "1/s", 3000.0).holds


@pytest.mark.parametrize("size", [SMALL, FULL])
def test_one_slow_claim_does_not_fail_the_pools_bench(size: Size) -> None:
    assert quantile([1.0] * (size.claims - 1) + [1000.0], 0.95) == 1.0
