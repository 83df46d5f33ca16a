"""The name under which `penstock eval` stores the results of a suite."""

from pathlib import Path

import pytest

from orchestrator.cli.evaluate import name_of_suite


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("heldout-v1.0", "heldout-v1.0"),
        ("heldout-v1.1", "heldout-v1.1"),
        ("swe.verified", "swe.verified"),
        ("folder.jsonl", "folder.jsonl"),
        ("heldout", "heldout"),
    ],
)
def test_a_folder_gives_its_whole_name(place: str, name: str, tmp_path: Path) -> None:
    (tmp_path / place).mkdir()
    assert name_of_suite(tmp_path / place) == name


def test_a_file_gives_its_name_without_its_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swe-1.2.jsonl").touch()
    assert name_of_suite(tmp_path / "swe-1.2.jsonl") == "swe-1.2"
    monkeypatch.chdir(tmp_path)
    assert name_of_suite(Path()) == tmp_path.name
