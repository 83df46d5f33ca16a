"""Containers that an engine starts as it starts all: programs run from /tmp, state is of their user, ranks share memory."""

from typing import Any

import pytest
import yaml

from orchestrator.deploy.cluster.commands import steps as steps_of
from orchestrator.deploy.cluster.render.objects import USER
from tests.unit.cluster.rendered import EXAMPLES, files
from tests.unit.cluster.test_scale import SITE, changed

Services = dict[str, dict[str, Any]]


def composed(name: str) -> list[Services]:
    """The services of each machine."""
    return [
        yaml.load(text, Loader=yaml.CSafeLoader)["services"]
        for file, text in files(name, "compose").items()
        if file.endswith("compose.yaml")
    ]


def options(service: dict[str, Any]) -> list[str]:
    """The mount options of its /tmp."""
    (tmp,) = [each for each in service["tmpfs"] if each.startswith("/tmp:")]
    found: list[str] = tmp.partition(":")[2].split(",")
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_services_that_run_programs_from_tmp_may_execute_there(name: str) -> None:
    seen = set()
    for services in composed(name):
        for called, service in services.items():
            runs = called.startswith(("runner", "verifier", "rollout-server", "trainer"))
            assert ("exec" in options(service)) is runs, called
            seen.add(runs)
    assert seen == {True, False}


@pytest.mark.parametrize("name", EXAMPLES)
def test_state_is_given_to_the_user_of_its_process_before_that_starts(name: str) -> None:
    for services in composed(name):
        kept: dict[str, str] = {}
        for called, service in services.items():
            if called == "own" or "user" not in service:  # PostgreSQL's own start gives its directory away
                continue
            assert service["user"] == f"{USER}:{USER}"
            for volume in service.get("volumes", []):
                if isinstance(volume, str) and volume.startswith("state-"):
                    kept[volume.partition(":")[0]] = called
                    assert service["depends_on"]["own"] == {"condition": "service_completed_successfully"}, (
                        called
                    )
        assert ("own" in services) is bool(kept)
        if not kept:
            continue
        own = services["own"]
        places = dict(volume.split(":") for volume in own["volumes"])
        assert set(places) == set(kept)
        assert own["command"] == ["chown", f"{USER}:{USER}", *places.values()]
        assert (own["user"], own["cap_drop"], own["cap_add"]) == ("0:0", ["ALL"], ["CHOWN"])
        assert own["network_mode"] == "none" and own["read_only"] and own["restart"] == "no"


@pytest.mark.parametrize("name", EXAMPLES)
def test_ranks_share_more_memory_than_an_engine_gives_and_have_a_home_that_they_can_write_to(
    name: str,
) -> None:
    found = 0
    for services in composed(name):
        for called, service in services.items():
            if called.startswith("trainer") or "sglang.launch_server" in service.get("command", []):
                found += 1
                assert service["shm_size"] == "8gb", called
            if called.startswith(("trainer", "rollout-server")):
                assert service["environment"]["HOME"] == "/tmp", called
    assert found


def test_who_comes_later_finds_its_state_its_own() -> None:
    lines = [step.shell for step in steps_of(changed("topology", "runners=3..3"), "compose", SITE)]
    own = next(at for at, line in enumerate(lines) if "docker compose run --rm -T own" in line)
    begins = next(at for at, line in enumerate(lines) if "up --detach --no-deps runner-2" in line)
    assert own < begins
