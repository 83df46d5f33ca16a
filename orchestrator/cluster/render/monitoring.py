"""Kubernetes: scrapes, alert rules and dashboards for the metrics that exist, and the scaling of runner pools by the work that waits."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from orchestrator.bus import subjects
from orchestrator.bus.link import urls_of
from orchestrator.cluster.placement import Process
from orchestrator.cluster.render.objects import METRICS, Object, labels, made, named
from orchestrator.cluster.topology import RunnerPool, Topology

DASHBOARDS = Path(__file__).resolve().parents[3] / "ops" / "dashboards"
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

    mine = {key: value for key, value in labels(topology, "").items() if not key.endswith("component")}
    component = "app.kubernetes.io/component"
    servers = {"matchLabels": labels(topology, "rollout-server")}
    others = {
        "matchLabels": mine,
        "matchExpressions": [
            {
                "key": component,
                "operator": "NotIn",
                "values": ["rollout-server", "nats", "postgres", "migrate"],
            }
        ],
    }
    return [monitor("processes", METRICS, others), monitor("rollout-servers", "http", servers)]


def alerts(topology: Topology) -> list[Object]:
    """The rules of ops/dashboards/alerts.yml."""
    rules = _rules()
    return [made(topology, "monitoring.coreos.com/v1", "PrometheusRule", "alerts", "monitoring", rules)]


@cache
def _rules() -> Any:
    return yaml.safe_load((DASHBOARDS / "alerts.yml").read_text(encoding="utf-8"))


def dashboards(topology: Topology) -> list[Object]:
    """For Grafana's sidecar, which takes every ConfigMap of this label."""
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


def first_host(urls: str) -> str:
    """Of URLs with commas between them; an address of IPv6 in brackets.

    >>> first_host("nats://one:4222,nats://two:4222")
    'one'
    """
    first = urls_of(urls)[0]
    host = urlsplit(first if "://" in first else f"//{first}").hostname or ""
    return f"[{host}]" if ":" in host else host


def scaled(topology: Topology, process: Process, pool: RunnerPool) -> list[Object]:
    """A ScaledObject of KEDA: one runner more for as many waiting assignments as it has slots. Only runners and verifiers: what they hold
    is leased and comes back by itself; a gateway, a rollout server or a trainer is what somebody else waits for."""
    if not pool.max_replicas or not topology.kubernetes.autoscaling:
        return []
    run = topology.name
    rollouts = process.role == "runner"
    consumer = subjects.consume_work_rollout(run) if rollouts else subjects.consume_work_verify(run)
    server = (
        first_host(topology.nats.external)
        if topology.nats.external
        else f"{named(topology, 'nats')}-headless.{topology.kubernetes.namespace}.svc"
    )
    trigger = {
        "type": "nats-jetstream",
        "metadata": {
            "natsServerMonitoringEndpoint": f"{server}:{topology.nats.monitor_port}",
            "account": "$G",
            "stream": consumer.stream,
            "consumer": consumer.durable,
            "lagThreshold": f"{pool.slots}",
            "activationLagThreshold": "0",
        },
    }
    spec = {
        "scaleTargetRef": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": named(topology, process.name),
        },
        "minReplicaCount": pool.replicas,
        "maxReplicaCount": pool.max_replicas,
        "pollingInterval": 15,
        "cooldownPeriod": 600,  # a runner that goes gives its rollouts back: not for every lull
        "triggers": [trigger],
    }
    return [
        made(
            topology, "keda.sh/v1alpha1", "ScaledObject", process.name, process.role, spec, pool=process.pool
        )
    ]
