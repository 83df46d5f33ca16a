"""The guide "Bring your tasks": its commands up to the first run, as a reader runs them. `publish`, `eval` and `up` are followed on real stacks by
the tests of the guides that it links to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.lab.task_set import PLAIN
from tests.guides import REPOSITORY, blocks

pytestmark = [pytest.mark.tier("vetting"), pytest.mark.timeout(300)]

PAGE = "ops/guides/bring-your-tasks.md"
LESS = {"vet mine": "vet mine/write mine/mcp --times 1 --until controls-hold"}


def bash(directory: Path, text: str, status: int = 0) -> str:
    for whole, less in LESS.items():
        text = text.replace(whole, less)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=directory,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, (text, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def test_a_reader_checks_builds_and_vets_the_set(tmp_path: Path) -> None:
    (tmp_path / "ops").symlink_to(REPOSITORY / "ops")
    printed = "".join(bash(tmp_path, block.text) for block in blocks(PAGE) if block.info in ("run", "vet"))
    for expected in (
        f"{len(PLAIN)} tasks are in mine",
        f"{len(PLAIN)} tasks are well-formed\n",
        "3 tasks are well-formed, build and need no network to be graded",
        "2 of 2 tasks reach controls-hold",
    ):
        assert expected in printed, (expected, printed)
    assert (tmp_path / "vetted.html").exists() and (tmp_path / "mine/vetting.jsonl").exists()


def test_check_with_build_names_the_task_whose_tests_fetch_something(tmp_path: Path) -> None:
    for name, script in (
        ("good", "[ -f out ] && echo 1 > /logs/verifier/reward.txt"),
        ("bad", "curl -LsSf https://example.com/x | sh"),
    ):
        for path, body in (
            ("task.toml", ""),
            ("instruction.md", "Make out."),
            ("tests/test.sh", script),
            ("solution/solve.sh", "touch out"),
        ):
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(body)
    for path, body in (
        ("task.toml", '[[steps]]\nname = "one"\n'),
        ("steps/one/instruction.md", "Make out."),
        ("steps/one/tests/test.sh", "pip install nothing && echo 1 > /logs/verifier/reward.txt"),
        ("steps/one/solution/solve.sh", "touch out"),
    ):
        (tmp_path / "steps" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "steps" / path).write_text(body)
    says = bash(tmp_path, "penstock tasks check --build .", status=1)
    assert "steps/one/tests/test.sh line 1 (pip install nothing" in says
    assert "bad: it needs the network to be graded" in says and "tests/test.sh line 1 (curl -LsSf" in says
    assert "good" not in says and "tests/Dockerfile" in says
