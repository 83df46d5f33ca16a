"""`web.hosts`: names of the dashboard, as browsers send them."""

from pathlib import Path

import pytest

from orchestrator.contracts.quote import quoted
from orchestrator.settings.config import load
from tests.unit.settings.config_rig import refusal, written


@pytest.mark.parametrize(
    "host", ["http://dash.example", "dash.example:80", "*.example", "", " ", "[::1]:80", "a/b"]
)
def test_a_name_of_the_dashboard_that_no_browser_sends_is_refused(tmp_path: Path, host: str) -> None:
    sentence = refusal(tmp_path, "", f"web.hosts=['ok', '{host}']")
    assert f"web.hosts: {quoted(host)} is not " in sentence
    assert sentence.endswith("write a name or an address alone, without http://, a port or a *")


def test_names_of_the_dashboard_have_the_spelling_that_browsers_send(tmp_path: Path) -> None:
    hosts = load(
        written(
            tmp_path, '[web]\nhosts = ["Dash.Example", "gpu-1", "[FE80::1]", "10.0.0.1", "bücher.example"]\n'
        )
    ).web.hosts
    assert hosts == ("dash.example", "gpu-1", "fe80::1", "10.0.0.1", "xn--bcher-kva.example")
