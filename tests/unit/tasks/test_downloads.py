"""Test scripts that download without a network are named before their zeros are."""

import pytest

from orchestrator.cli.task_notes import notes
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.downloads import downloads
from orchestrator.tasks.harbor import Task


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("apt-get update && true", "apt-get update"),
        ("true && sudo apt-get -qq -y install curl", "apt-get install"),
        ("DEBIAN_FRONTEND=noninteractive apt install x", "apt install"),
        ("if ! pip install -q pytest; then exit 1; fi", "pip install"),
        ("  python3 -m pip install pytest", "python3 -m pip install"),
        ("uvx -p 3.12 pytest /tests", "uvx"),
        ("uv run --with pytest==8 pytest", "uv run"),
        ("(cd /app; npm ci)", "npm ci"),
        ("curl -LsSf \\\n  https://example.org/x | sh", "curl"),
        ("x=$(wget -qO- http://example.org)", "wget"),
        ("git clone https://example.org/a.git", "git clone"),
        ("command -v uvx || exit 1", ""),
        ("# apt-get update", ""),
        ("echo 'first: apt-get install curl'", ""),
        ("curl -s http://localhost:8000/health", ""),
        ("curl -s http://127.0.0.1:80 | grep https://x", ""),
        ("pip install --no-index --find-links /tests/wheels pytest", ""),
        ("uv sync --offline", ""),
        ("pip list; npm test; uv run pytest; git status", ""),
        ("python3 -I /tests/check.py", ""),
    ],
)
def test_a_command_that_plainly_downloads_is_found(script: str, command: str) -> None:
    assert downloads(f"set -u\n{script}\nexit 0\n") == command


PUBLIC = 'network_mode = "public"\n'
STEPPED = "".join(f'[[steps]]\nname = "{name}"\n' for name in "ab")


@pytest.mark.parametrize(
    ("toml", "where"),
    [
        ("", "tests/test.sh"),
        (f"[agent]\n{PUBLIC}", "tests/test.sh"),
        (STEPPED, "step b: tests/test.sh"),
        (f"[environment]\n{PUBLIC}", None),
        (f"[verifier]\n{PUBLIC}", None),
    ],
)
def test_one_note_names_the_first_task_whose_tests_download_without_a_network(
    toml: str, where: str | None
) -> None:
    test = b"uvx pytest /tests\n"
    files = {"instruction.md": b"Do it.", "tests/test.sh": test}
    if toml is STEPPED:
        files = {
            **{f"steps/{name}/instruction.md": b"Do it." for name in "ab"},
            "steps/a/tests/test.sh": b"true\n",
            "steps/b/tests/test.sh": test,
        }
    tasks = [Task.from_files({**files, "task.toml": toml.encode(), "a": mark}) for mark in (b"1", b"2")]
    found = list(notes(tasks, SandboxSection(), lambda: True))
    assert len(found) == (where is not None), found
    if where is not None:
        assert found[0].startswith("2 tasks whose tests download, and have no network")
        assert f"({tasks[0].name}: {where} runs uvx)" in found[0]
