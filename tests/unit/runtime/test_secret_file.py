"""Secrets that processes share in a file."""

import stat
from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime.secret_file import shared_secret


def test_a_shared_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    made = shared_secret(tmp_path / "secret")
    assert len(made) == 43 and stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert shared_secret(tmp_path / "secret") == made != shared_secret(tmp_path / "another")
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty: remove it"):
        shared_secret(tmp_path / "secret")
