"""penstock scaffold list and install, as people type them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app

ALL = {
    "shell",
    "mini-swe-agent",
    "opencode",
    "opencode-responses",
    "opencode-anthropic",
    "codex",
    "qwen-code",
    "aider",
    "claude-code",
    "oracle",
    "nop",
}


def test_list_names_every_scaffold_with_its_wire_and_how_to_install_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PROGRAMS", str(tmp_path))
    listed = CliRunner().invoke(app, ["scaffold", "list", "--json"])
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert set(rows) >= ALL
    assert rows["shell"] == {
        "name": "shell",
        "kind": "white-box",
        "wire": "native",
        "version": "1",
        "program": "none needed",
    }
    assert rows["codex"]["wire"] == "responses" and rows["opencode-anthropic"]["wire"] == "anthropic"
    assert rows["opencode"]["program"] == "absent: penstock scaffold install opencode"
    shown = CliRunner().invoke(app, ["scaffold", "list"]).stdout
    assert "qwen-code" in shown and "black-box" in shown


def test_install_says_what_needs_no_program_and_asks_for_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PROGRAMS", str(tmp_path))
    assert CliRunner().invoke(app, ["scaffold", "install", "shell"]).stdout == "shell: needs no program\n"
    refused = CliRunner().invoke(app, ["scaffold", "install", "claude-code"])
    assert refused.exit_code == 1 and "add --accept-licence" in str(refused.exception)
    assert not list(tmp_path.iterdir())
