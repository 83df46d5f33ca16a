"""Addresses that processes listen on: `gateway.host`, `metrics.host`, `web.host`."""

from pathlib import Path

import pytest

from orchestrator.settings.config import load
from tests.unit.settings.config_rig import refusal, written

HOSTS = ("gateway.host", "metrics.host", "web.host")


@pytest.mark.parametrize("key", HOSTS)
@pytest.mark.parametrize(
    "host", ["http://10.0.0.1", "10.0.0.1:80", "*", " ", "[::1]:80", "127.1", "a b", "x/24"]
)
def test_an_address_that_nothing_can_listen_on_is_refused(tmp_path: Path, key: str, host: str) -> None:
    sentence = refusal(tmp_path, "", f"{key}='{host}'")
    assert f"{key}: '{host}' is not " in sentence
    assert sentence.endswith("without http:// and without a port")


@pytest.mark.parametrize("key", HOSTS)
def test_an_empty_address_does_not_listen_everywhere(tmp_path: Path, key: str) -> None:
    assert f"{key}: an empty host would listen on every address" in refusal(tmp_path, "", f"{key}=''")


def test_addresses_have_the_spelling_that_sockets_take(tmp_path: Path) -> None:
    text = "[gateway]\nhost = 'LOCALHOST'\n[metrics]\nhost = '0.0.0.0'\n[web]\nhost = '[::1]'\n"
    config = load(written(tmp_path, text))
    assert (config.gateway.host, config.metrics.host, config.web.host) == ("localhost", "0.0.0.0", "::1")
