"""Every preset whose program may be installed without a question, with the real program: one task to a verdict, and the whole check."""

import json
import subprocess
import sys

import pytest
from scaffolds import programs
from scaffolds.find import find, known

pytestmark = [pytest.mark.timeout(1500), pytest.mark.tier("harness")]

PRESETS = [
    name for name in known() if (program := find(name).manifest.program) is not None and not program.licence
]


def test_these_are_the_presets() -> None:
    named = {
        "aider",
        "codex",
        "mini-swe-agent",
        "opencode",
        "opencode-anthropic",
        "opencode-responses",
        "qwen-code",
    }
    assert set(PRESETS) == named


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_installed_from_its_lock_and_passes_the_check(name: str) -> None:
    program = find(name).manifest.program
    assert program is not None and programs.state_of(program) == "installed"
    ended = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "scaffold", "check", name, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout, ended.stderr
    report = json.loads(ended.stdout)
    failed = [finding for finding in report["findings"] if finding["verdict"] == "FAIL"]
    assert (failed, ended.returncode) == ([], 0)
    by_question = {finding["question"]: finding["verdict"] for finding in report["findings"]}
    assert (
        by_question["one task, to a verdict"]
        == by_question["zero drift"]
        == by_question["no egress"]
        == "pass"
    )
    assert "pass" in (by_question["stream"], by_question["non-stream"])
