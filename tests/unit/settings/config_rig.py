"""Configuration files of tests."""

from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.config import load


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "penstock.toml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(tmp_path: Path, text: str = "", *overrides: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(written(tmp_path, text), overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)
