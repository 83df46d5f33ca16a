"""The secret of the admin API."""

import stat
from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.gateway.http.admin import admin_secret


def test_the_admin_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    made = admin_secret(tmp_path / "secret")
    assert len(made) == 43 and stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert admin_secret(tmp_path / "secret") == made != admin_secret(tmp_path / "another")
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty: remove it"):
        admin_secret(tmp_path / "secret")
