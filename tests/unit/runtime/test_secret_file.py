"""Secrets that processes share in a file."""

import stat
from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime.secret_file import shared_secret, write_private


def test_a_shared_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    made = shared_secret(tmp_path / "secret")
    assert len(made) == 43 and stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert shared_secret(tmp_path / "secret") == made != shared_secret(tmp_path / "another")
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty: remove it"):
        shared_secret(tmp_path / "secret")


def test_a_private_file_is_its_owners_alone_whatever_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "key.yaml"
    file.write_text("what others could read")
    file.chmod(0o644)
    write_private(file, "api-key: word\n")
    assert file.read_text() == "api-key: word\n" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key.yaml"]
