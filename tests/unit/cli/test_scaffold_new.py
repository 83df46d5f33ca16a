"""The files that `penstock scaffold new` writes can be used unchanged."""

from pathlib import Path

import pytest
from scaffolds.find import find

from orchestrator.cli.scaffold_new import KINDS, reference, write


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_a_scaffold_of_its_directorys_name(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "my-agent"
    written = write(directory, kind)
    assert written and all(path.parent == directory for path in written)
    found = find(reference(directory, kind))
    assert found.manifest.name == "my-agent"
    assert found.manifest.kind == ("white" if kind == "white-box" else "black")
    assert "example-agent" not in "".join(path.read_text() for path in written)


def test_nothing_is_written_over_something_or_under_a_name_that_cannot_be_used(tmp_path: Path) -> None:
    write(tmp_path / "mine", "manifest")
    with pytest.raises(ValueError, match="is not empty"):
        write(tmp_path / "mine", "manifest")
    with pytest.raises(ValueError, match="scaffold 'My Agent' is not a valid name"):
        write(tmp_path / "My Agent", "manifest")
    with pytest.raises(ValueError, match="unknown kind 'docker'; known: manifest, black-box, white-box"):
        write(tmp_path / "other", "docker")


def test_a_scaffold_in_a_file_is_found_by_its_path_alone_or_by_its_class(tmp_path: Path) -> None:
    write(tmp_path / "mine", "white-box")
    file = tmp_path / "mine" / "mine.py"
    assert find(str(file)) is find(f"{file}:Agent")
    twice = tmp_path / "two.py"
    twice.write_text(file.read_text() + file.read_text().replace("class Agent", "class Other"))
    with pytest.raises(ValueError, match=r"declares 2 scaffolds: name the one that is meant, .*two.py:CLASS"):
        find(str(twice))
    for bad, problem in (
        (tmp_path / "absent.py", "does not exist"),
        (tmp_path / "bad.py", "NameError"),
    ):
        if bad.name == "bad.py":
            bad.write_text("absent")
        with pytest.raises(ValueError, match=problem):
            find(str(bad))
