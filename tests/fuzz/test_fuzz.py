"""A few hundred inputs of coverage-guided fuzzing for each target, the same ones in each run; `ops/fuzz TARGET` for as long as one likes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

TIMEOUT_S = 380.0  # imports that are instrumented take a minute on a busy machine
pytestmark = [pytest.mark.tier("faults"), pytest.mark.timeout(TIMEOUT_S + 20)]

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = {
    "anthropic": 150,
    "chat": 150,
    "forest": 100,
    "image": 500,
    "journal": 1_000,
    "responses": 150,
    "reward": 5_000,
    "scaffold": 300,
    "settings": 5_000,
    "task": 3_000,
    "planted": 500_000,  # at most: it ends with the fault
}
"""Inputs of each target: so many that the fuzzer is known to reach new lines with them."""


def fuzzed(target: str, directory: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", target, "--directory", str(directory), *more]
    same = os.environ | {"PYTHONHASHSEED": "0"}
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=same
    )


def test_every_target_has_its_number_of_inputs() -> None:
    assert RUNS.keys() == TARGETS.keys()


@pytest.mark.parametrize("target", sorted(TARGETS.keys() - {"planted"}))
def test_input_from_others_raises_only_expected_errors(target: str, tmp_path: Path) -> None:
    done = fuzzed(target, tmp_path, "--runs", str(RUNS[target]))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    initial, ended = (int(cov) for cov in re.findall(r"(?:INITED|DONE)\s+cov: (\d+)", done.stderr))
    assert ended > initial  # it reached more than its initial inputs did


def test_a_fault_behind_three_comparisons_is_found_and_its_bytes_show_it_again(tmp_path: Path) -> None:
    done = fuzzed("planted", tmp_path, "--runs", str(RUNS["planted"]))
    assert done.returncode != 0 and "the planted fault" in done.stdout + done.stderr
    [crash] = (tmp_path / "planted").glob("crash-*")
    again = fuzzed("planted", tmp_path, "--replay", str(crash))
    assert again.returncode == 1 and "RuntimeError: the planted fault" in again.stderr
