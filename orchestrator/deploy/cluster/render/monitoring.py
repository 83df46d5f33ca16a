"""Kubernetes: scrapes, alert rules and dashboards for the metrics that exist."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.cluster.render.objects import (
    METRICS,
    Object,
    labels,
    made,
)
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.runtime.shipped import shipped

DASHBOARDS = shipped("_dashboards", "ops/dashboards")
SHOWN = ("overview", "gateway", "trainer", "infrastructure")


def scrapes(topology: Topology) -> list[Object]:
    """One PodMonitor for the product's processes, one for rollout servers. The labels are those that the alert rules expect."""

    def relabel(target: str, **how: object) -> Object:
        return {"action": "replace", "targetLabel": target, **how}

    common = [relabel("job", replacement="penstock"), relabel("run", replacement=topology.name)]
    instance = relabel("instance", sourceLabels=["__meta_kubernetes_pod_name"])
    host = relabel("host", sourceLabels=["__meta_kubernetes_pod_node_name"])

    def monitor(name: str, port: str, selector: Mapping[str, object]) -> Object:
        spec = {
            "selector": dict(selector),
            "podMetricsEndpoints": [
                {
                    "port": port,
                    "path": "/metrics",
                    "interval": "15s",
                    "honorLabels": True,
                    "relabelings": [*common, instance, host],
                }
            ],
        }
        return made(topology, "monitoring.coreos.com/v1", "PodMonitor", name, "monitoring", spec)

    own_labels = {key: value for key, value in labels(topology, "").items() if not key.endswith("component")}
    component = "app.kubernetes.io/component"
    servers = {"matchLabels": labels(topology, ProcessRole.ROLLOUT_SERVER)}
    processes = {
        "matchLabels": own_labels,
        "matchExpressions": [
            {
                "key": component,
                "operator": "NotIn",
                "values": [
                    ProcessRole.ROLLOUT_SERVER,
                    ProcessRole.NATS,
                    ProcessRole.POSTGRES,
                    ProcessRole.MIGRATE,
                ],
            }
        ],
    }
    return [monitor("processes", METRICS, processes), monitor("rollout-servers", "http", servers)]


def alerts(topology: Topology) -> list[Object]:
    """The rules of ops/dashboards/alerts.yml."""
    rules = _rules()
    return [made(topology, "monitoring.coreos.com/v1", "PrometheusRule", "alerts", "monitoring", rules)]


@cache
def _rules() -> Any:
    return yaml.safe_load((DASHBOARDS / "alerts.yml").read_text(encoding="utf-8"))


def dashboards(topology: Topology) -> list[Object]:
    """Dashboards for Grafana's sidecar, which loads every ConfigMap with this label."""
    found = []
    for name in SHOWN:
        text = json.dumps(json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8")), indent=1)
        each = made(
            topology,
            "v1",
            "ConfigMap",
            f"dashboard-{name}",
            "monitoring",
            None,
            data={f"penstock-{name}.json": text + "\n"},
        )
        each["metadata"]["labels"]["grafana_dashboard"] = "1"
        found.append(each)
    return found
