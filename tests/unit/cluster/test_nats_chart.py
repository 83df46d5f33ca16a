"""Pods that the chart nats/nats makes: known by the labels that it gives, and taken by a namespace that is `restricted`."""

from typing import Any

import pytest
import yaml

from orchestrator.deploy.cluster.objects import selects
from tests.unit.cluster.rendered import EXAMPLES, files, objects, topology
from tests.unit.cluster.test_kubernetes import get


def values(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files(name, "kubernetes")["values/nats.yaml"])
    return found


def release(name: str) -> str:
    """The release name under which the README installs it."""
    line = next(
        each for each in files(name, "kubernetes")["README.md"].splitlines() if "helm install" in each
    )
    return line.split()[2]


def labels(name: str) -> dict[str, str]:
    """The labels of its `nats.selectorLabels`, with those merged over them: a set whose template has others is refused."""
    own = {
        "app.kubernetes.io/name": "nats",
        "app.kubernetes.io/instance": release(name),
        "app.kubernetes.io/component": "nats",
    }
    over = values(name)["podTemplate"]["merge"].get("metadata", {}).get("labels", {})
    assert not set(own) & set(over), "the set would not select its own pods"
    return {**own, **over}


@pytest.mark.parametrize("name", EXAMPLES)
def test_policies_take_the_pods_that_the_chart_makes(name: str) -> None:
    of, found = topology(name).name, objects(name)
    assert selects(get(found, "NetworkPolicy", f"{of}-nats")["spec"]["podSelector"], labels(name))
    for client in ("orchestrator", "gateway", "runner", "verifier", "web"):
        egress = get(found, "NetworkPolicy", f"{of}-{client}")["spec"]["egress"]
        peers = [
            peer["podSelector"] for entry in egress for peer in entry.get("to", []) if "podSelector" in peer
        ]
        assert any(selects(peer, labels(name)) for peer in peers), client


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_restricted_namespace_takes_each_container_that_the_chart_can_make(name: str) -> None:
    of = values(name)
    assert (
        get(objects(name), "Namespace", "penstock")["metadata"]["labels"][
            "pod-security.kubernetes.io/enforce"
        ]
        == "restricted"
    )
    for pod in (of["podTemplate"], of["natsBox"]["podTemplate"]):
        context = pod["merge"]["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True and context["runAsUser"] > 0  # its images name no user
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (of["container"], of["reloader"], of["promExporter"], of["natsBox"]["container"]):
        context = container["merge"]["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_its_data_is_of_the_user_that_it_runs_as() -> None:
    context = values("nodes4")["podTemplate"]["merge"]["spec"]["securityContext"]
    assert context["fsGroup"] == context["runAsUser"]
