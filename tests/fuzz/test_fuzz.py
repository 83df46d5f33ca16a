"""A few seconds of coverage-guided fuzzing of each target; `ops/fuzz TARGET` for as long as one likes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.tier("faults")

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 4


def fuzzed(target: str, directory: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", target, "--directory", str(directory), *more]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("target", sorted(TARGETS.keys() - {"planted"}))
def test_input_from_others_raises_only_expected_errors(target: str, tmp_path: Path) -> None:
    done = fuzzed(target, tmp_path, "--seconds", str(SECONDS))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    initial, ended = (int(cov) for cov in re.findall(r"(?:INITED|DONE)\s+cov: (\d+)", done.stderr))
    assert ended > initial  # it reached more than its initial inputs did


def test_a_fault_behind_three_comparisons_is_found_and_its_bytes_show_it_again(tmp_path: Path) -> None:
    done = fuzzed("planted", tmp_path, "--seconds", "30")
    assert done.returncode != 0 and "the planted fault" in done.stdout + done.stderr
    [crash] = (tmp_path / "planted").glob("crash-*")
    again = fuzzed("planted", tmp_path, "--replay", str(crash))
    assert again.returncode == 1 and "RuntimeError: the planted fault" in again.stderr
