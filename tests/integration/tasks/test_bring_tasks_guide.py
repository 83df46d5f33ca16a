"""The guide "Bring your tasks": its commands up to the first run, as a reader runs them, and its table of refusals. `publish`, `eval` and `up` are
followed on real stacks by the tests of the guides that it links to."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops.lab.task_set import PLAIN, WITH_IMAGES
from tests.guides import PAGES, REPOSITORY, blocks, commands

pytestmark = [pytest.mark.tier("vetting"), pytest.mark.timeout(300)]

PAGE = "ops/guides/bring-your-tasks.md"
LESS = {"vet mine": "vet mine/write mine/mcp --times 1 --until controls-hold"}
SHORT = 8


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


def test_the_run_of_the_guide_is_made_first_and_is_up_before_anything_is_sent_to_it() -> None:
    lines = commands(PAGE)
    calls = [
        next((n for n, line in enumerate(lines) if line.startswith(f"penstock {call}")), -1)
        for call in ("init runs/mine", "up -c runs/mine", "tasks publish mine", "eval ")
    ]
    assert calls[0] == 0 and calls == sorted(calls), lines
    assert {word for line in lines for word in line.split() if word.startswith("runs/")} == {"runs/mine"}


def test_the_guide_counts_the_tasks_of_the_set() -> None:
    counts = re.findall(r"the (\d+)(?: tasks| with probes)", PAGES[PAGE])
    assert counts and {int(number) for number in counts} == {len(PLAIN)}
    _, _, times = PAGES[PAGE].partition("| task | level | s |")
    assert set(re.findall(r"`([a-z-]+)`", times.partition("\n\n")[0])) >= {*PLAIN}


def test_every_task_of_the_set_is_in_the_table_of_kinds() -> None:
    table = PAGES[PAGE].partition("| kind | task |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", table)) >= {*PLAIN, *WITH_IMAGES}


def test_every_message_in_the_table_of_refusals_is_one_of_the_code() -> None:
    table = PAGES[PAGE].partition("| message | remedy |\n|---|---|\n")[2].partition("\n\n")[0]
    code = "".join(
        path.read_text() for top in ("orchestrator", "sandboxes") for path in (REPOSITORY / top).rglob("*.py")
    )
    missing = []
    for row in table.splitlines():
        for span in re.findall(r"`([^`]+)`", row.split("|")[1]):
            parts = [
                part.strip(" :")
                for part in re.split(r"…|\[[a-z]+\]\.\w+ = |'[^']*'|RUN |ENTRYPOINT |FROM, .*", span)
            ]
            missing += [
                part for part in parts if len(part) >= SHORT and not part.startswith("[") and part not in code
            ]
    assert [
        part for part in missing if part not in ("tests/test.sh begins with", "docker-compose.yaml: service")
    ] == []
