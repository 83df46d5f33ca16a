"""The key of rollout servers in every render: gateways send it, servers require it, and it is on no command line."""

import copy
import re
import tomllib
from typing import Any

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.reading import read
from orchestrator.deploy.cluster.render import Target, render
from tests.unit.cluster.rendered import CLUSTER, parsed

RAW = tomllib.loads((CLUSTER / "examples/nodes4.toml").read_text())
EMBEDDED = tomllib.loads((CLUSTER / "examples/laptop.toml").read_text())
KEYS = {
    "server_key": {"name": "run-servers", "key": "key"},
    "server_key_config": {"name": "run-servers", "key": "config"},
}
KEY, CONFIG = r"[^\s\"']*run-servers[./-]key\b", r"[^\s\"']*run-servers[./-]config\b"


def with_keys(raw: dict[str, Any], *names: str) -> dict[str, Any]:
    changed = copy.deepcopy(raw)
    changed["secrets"] = {**changed.get("secrets", {}), **{name: KEYS[name] for name in names}}
    return changed


def text_of(raw: dict[str, Any], target: str) -> str:
    return "\n".join(str(text) for text in render(read(raw), target).values())


@pytest.mark.parametrize("target", Target)
def test_gateways_and_sglang_get_the_files_of_the_key(target: str) -> None:
    text = text_of(with_keys(RAW, *KEYS), target)
    assert re.search(rf"servers\.key_file={KEY}", text)
    assert re.search(rf"--config[\"',\s\\-]+{CONFIG}", text)
    assert "servers.key_file" not in text_of(RAW, target)


@pytest.mark.parametrize("target", Target)
def test_an_embedded_server_gets_the_file_of_the_key_itself(target: str) -> None:
    text = text_of(with_keys(EMBEDDED, "server_key"), target)
    assert re.search(rf"servers\.key_file={KEY}", text) and re.search(rf"--key-file[\"',\s\\-]+{KEY}", text)


def test_a_pod_sees_no_other_part_of_the_secret_than_its_own() -> None:
    rendered = render(read(with_keys(RAW, *KEYS)), "kubernetes")
    parts: dict[str, set[str]] = {}
    for found in parsed(dict(rendered)):
        for template in templates(found):
            role = template["metadata"]["labels"]["app.kubernetes.io/component"]
            for volume in template["spec"].get("volumes", []):
                if volume.get("secret", {}).get("secretName") == "run-servers":
                    parts.setdefault(role, set()).update(item["key"] for item in volume["secret"]["items"])
                    mounted = [
                        mount["readOnly"]
                        for container in template["spec"]["containers"]
                        for mount in container["volumeMounts"]
                        if mount["name"] == volume["name"]
                    ]
                    assert mounted == [True]
    assert parts == {"gateway": {"key"}, "rollout-server": {"config"}}


def templates(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of an object."""
    spec = found.get("spec", {})
    group = spec.get("leaderWorkerTemplate", {})
    every = [spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")]
    return [template for template in every if template]


def test_a_file_of_options_of_ones_own_is_refused_with_that_of_the_key() -> None:
    raw = with_keys(RAW, *KEYS)
    raw["servers"][0]["options"] = ["--config", "/etc/sglang.yaml"]
    with pytest.raises(
        ConfigurationError, match=r"servers\[0\]\.options: --config is secrets\.server_key_config"
    ):
        read(raw)
