"""Names of this machine in Host headers."""

import pytest

from orchestrator.runtime.loopback import host_name, is_loopback


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:8000", "127.8.0.1", "[::1]", "[::1]:8000", "::1"],
)
def test_names_of_this_machine_are_loopback(host: str) -> None:
    assert is_loopback(host_name(host))


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8000",
        "attacker.example",
        "127.0.0.1.attacker.example",
        "localhost.attacker.example:80",
        "10.0.0.1",
        "[2001:db8::1]:80",
        "0.0.0.0",
    ],
)
def test_other_names_are_not(host: str) -> None:
    assert not is_loopback(host_name(host))
