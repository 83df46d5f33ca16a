"""A unit's permissions are enough for its process: sandboxes name themselves, ranks find each other and keep caches."""

import subprocess
from fnmatch import fnmatch

import pytest

from tests.unit.cluster.rendered import EXAMPLES, files
from tests.unit.cluster.tools import wants


def units(name: str) -> dict[str, dict[str, list[str]]]:
    """Of each unit, by the kind of its process: values of each setting, in order."""
    found: dict[str, dict[str, list[str]]] = {}
    for file, text in files(name, "systemd").items():
        if file.endswith(".service"):
            settings: dict[str, list[str]] = {}
            for line in text.splitlines():
                key, equals, value = line.partition("=")
                if equals and not line.startswith("#"):
                    settings.setdefault(key, []).append(value)
            found[file] = settings
    return found


def of(name: str, *roles: str) -> dict[str, dict[str, list[str]]]:
    return {
        file: settings
        for file, settings in units(name).items()
        if any(f"-{role}" in file.rpartition("/")[2] for role in roles)
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_who_opens_sandboxes_may_name_them(name: str) -> None:
    makers = of(name, "runner", "verifier")
    assert makers
    for file, settings in makers.items():
        assert "ProtectHostname" not in settings, file
        assert any("sethostname" in value.split() for value in settings["SystemCallFilter"]), file
    others = {file: settings for file, settings in units(name).items() if file not in makers}
    assert all(settings["ProtectHostname"] == ["yes"] for settings in others.values())


@wants("systemd-analyze")
def test_what_systemd_takes_for_a_service_has_no_naming_of_hosts_in_it() -> None:
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "@system-service"], capture_output=True, text=True, check=True
    )
    assert "sethostname" not in listed.stdout  # so a unit that makes sandboxes must add it


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_schema_is_tried_again_until_the_database_answers_and_made_again_with_its_target(
    name: str,
) -> None:
    (unit,) = of(name, "migrate").values()
    assert unit["Type"] == ["oneshot"] and unit["Restart"] == ["on-failure"]
    assert unit["StartLimitIntervalSec"] == ["0"]  # a database may be away for long
    assert unit["PartOf"] == unit["WantedBy"]


@pytest.mark.parametrize("group", ["nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps"])
def test_a_unit_with_gpus_may_use_each_group_of_devices_that_a_driver_names(group: str) -> None:
    """Drivers before 550 call the GPUs `nvidia-frontend` in /proc/devices, where systemd looks for the names."""
    allowed = [
        value.split()[0].removeprefix("char-")
        for settings in of("node8", "trainer", "rollout-server").values()
        for value in settings["DeviceAllow"]
    ]
    assert allowed and any(fnmatch(group, pattern) for pattern in allowed)


@pytest.mark.parametrize("name", EXAMPLES)
def test_ranks_may_look_for_interfaces_and_have_a_home_that_they_can_write_to(name: str) -> None:
    computing = of(name, "trainer", "rollout-server")
    assert computing
    for file, settings in computing.items():
        assert "AF_NETLINK" in " ".join(settings["RestrictAddressFamilies"]).split(), file
        (home,) = [value for value in settings["Environment"] if value.startswith("HOME=")]
        assert home == f"HOME={settings['WorkingDirectory'][0]}"
        assert home.endswith(settings["StateDirectory"][0]), "systemd makes it for the unit's user"
    for file, settings in of(name, "web", "gateway", "orchestrator").items():
        assert "AF_NETLINK" not in " ".join(settings["RestrictAddressFamilies"]), file
