"""The key that a gateway sends to its rollout servers: made for those that Penstock starts, given by a person for all others."""

from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.gateway.server import GatewaySettings, server_key
from orchestrator.settings.config import Config

URL = "http://127.0.0.1:1"


def _settings(tmp_path: Path, file: Path | None, **servers: object) -> GatewaySettings:
    return GatewaySettings(
        run="first",
        config=Config.model_validate({"servers": servers}),
        model_dir=tmp_path,
        server_urls=(URL,),
        socket_path=tmp_path / "socket",
        journal_dir=tmp_path,
        admin_secret_file=tmp_path / "secret",
        server_key_file=file,
    )


def test_a_key_file_of_servers_that_run_already_must_exist(tmp_path: Path) -> None:
    file = tmp_path / "mistyped"
    with pytest.raises(ConfigurationError, match=f"servers.key_file: file {file} does not exist"):
        server_key(_settings(tmp_path, file, urls=[URL], key_file=str(file)))
    assert not file.exists()
    file.write_text("word\n")
    assert server_key(_settings(tmp_path, file, urls=[URL], key_file=str(file))) == "word"


def test_the_key_of_servers_that_are_started_here_is_made(tmp_path: Path) -> None:
    file = tmp_path / "key"
    made = server_key(_settings(tmp_path, file, key_file=str(file)))
    assert made and made == file.read_text().strip()
    assert server_key(_settings(tmp_path, None)) is None
