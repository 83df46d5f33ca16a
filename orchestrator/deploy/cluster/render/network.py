"""Kubernetes: network policies. Nothing is allowed by default. Every line of `EDGES` is a needed connection, allowed at both of its ends."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.cluster.objects import NATS, PROMETHEUS, SANDBOXES
from orchestrator.deploy.cluster.placement import PlacedProcess
from orchestrator.deploy.cluster.render.objects import (
    Object,
    labels,
    made,
    makes_pods,
    named,
)
from orchestrator.deploy.cluster.topology import Topology

EDGES = (
    (ProcessRole.MIGRATE, ProcessRole.POSTGRES, "client"),
    (ProcessRole.ORCHESTRATOR, ProcessRole.POSTGRES, "client"),
    (ProcessRole.GATEWAY, ProcessRole.POSTGRES, "client"),
    (ProcessRole.RUNNER, ProcessRole.POSTGRES, "client"),
    (ProcessRole.VERIFIER, ProcessRole.POSTGRES, "client"),
    (ProcessRole.TRAINER, ProcessRole.POSTGRES, "client"),
    (ProcessRole.WEB, ProcessRole.POSTGRES, "client"),
    (ProcessRole.ORCHESTRATOR, ProcessRole.NATS, "client"),
    (ProcessRole.GATEWAY, ProcessRole.NATS, "client"),
    (ProcessRole.RUNNER, ProcessRole.NATS, "client"),
    (ProcessRole.VERIFIER, ProcessRole.NATS, "client"),
    (ProcessRole.WEB, ProcessRole.NATS, "client"),
    (ProcessRole.NATS, ProcessRole.NATS, "cluster"),
    (ProcessRole.RUNNER, ProcessRole.GATEWAY, "http"),
    (ProcessRole.RUNNER, ProcessRole.GATEWAY, "sandboxes"),
    (ProcessRole.GATEWAY, ProcessRole.ROLLOUT_SERVER, "http"),
)
"""(client, server, port)."""
API_SERVER = (443, 6443)
OPERATOR_PORT = 8000  # of an instance, where CloudNativePG's operator queries its status
SANDBOX = "sandbox"


def _of(topology: Topology, component: str) -> Mapping[str, str]:
    if component == ProcessRole.POSTGRES:
        return {"cnpg.io/cluster": f"{topology.name}-postgres"}
    if component == ProcessRole.NATS:
        return {
            **NATS,
            "app.kubernetes.io/instance": named(topology, ProcessRole.NATS),
        }  # the chart's release
    return labels(topology, component)


def _peer(topology: Topology, component: str) -> Object:
    return {"podSelector": {"matchLabels": dict(_of(topology, component))}}


def _namespace(name: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _tcp(*ports: int) -> list[Object]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _policy(
    topology: Topology,
    name: str,
    component: str,
    selector: Mapping[str, Any],
    ingress: list[Object] | None,
    egress: list[Object] | None,
    *,
    namespace: str = "",
) -> Object:
    spec: Object = {"podSelector": dict(selector)}
    types = [
        direction for direction, rules in (("Ingress", ingress), ("Egress", egress)) if rules is not None
    ]
    spec["policyTypes"] = types
    if ingress:
        spec["ingress"] = ingress
    if egress:
        spec["egress"] = egress
    return made(topology, "networking.k8s.io/v1", "NetworkPolicy", name, component, spec, namespace=namespace)


def policies(topology: Topology, kinds: Mapping[tuple[ProcessRole, str], PlacedProcess]) -> list[Object]:
    """Every policy of both namespaces."""
    return [*_defaults(topology), *_roles(topology, kinds), *_makers(topology), *_sandboxes(topology)]


def _defaults(topology: Topology) -> Iterator[Object]:
    for space in (topology.kubernetes.namespace, topology.kubernetes.sandbox_namespace):
        yield _policy(topology, "default-deny", "network", {}, [], [], namespace=space)
    dns = {"to": [_namespace("kube-system")], "ports": [{"protocol": "UDP", "port": 53}, *_tcp(53)]}
    yield _policy(topology, "names", "network", {}, None, [dns])


def _ports(
    topology: Topology, kinds: Mapping[tuple[ProcessRole, str], PlacedProcess], component: str, what: str
) -> list[int]:
    if component == ProcessRole.POSTGRES:
        return [5432]  # CloudNativePG's
    if component == ProcessRole.NATS:
        return [
            {
                "client": topology.nats.port,
                "cluster": topology.nats.cluster_port,
                "monitor": topology.nats.monitor_port,
            }[what]
        ]
    found = {
        each.ports[what] for (role, _), each in kinds.items() if role == component and what in each.ports
    }
    return sorted(found)


def _roles(topology: Topology, kinds: Mapping[tuple[ProcessRole, str], PlacedProcess]) -> Iterator[Object]:
    external = {
        name
        for name, is_external in (
            (ProcessRole.POSTGRES, topology.postgres.external),
            (ProcessRole.NATS, bool(topology.nats.external)),
        )
        if is_external
    }
    components = dict.fromkeys(
        [ProcessRole.MIGRATE, ProcessRole.POSTGRES, ProcessRole.NATS, *(role for role, _ in kinds)]
    )
    for component in components:
        if component in external:
            continue
        ingress: list[Object] = []
        egress: list[Object] = []
        for client, server, port_name in EDGES:
            ports = _tcp(*_ports(topology, kinds, server, port_name))
            if server == component and client in components:
                ingress.append({"from": [_peer(topology, client)], "ports": ports})
            if client == component and server in components and server not in external:
                egress.append({"to": [_peer(topology, server)], "ports": ports})
            if client == component and server in external:  # its address is unknown here
                egress.append({"ports": ports})
        # Collectives use arbitrary ports.
        if component in (ProcessRole.ROLLOUT_SERVER, ProcessRole.TRAINER) and any(
            "meeting" in each.ports for (role, _), each in kinds.items() if role == component
        ):
            own = _peer(topology, component)
            ingress.append({"from": [own]})
            egress.append({"to": [own]})
        if component == ProcessRole.POSTGRES:
            # Instances follow each other and keep their state at the API server.
            own = _peer(topology, component)
            ingress.append({"from": [own], "ports": _tcp(5432, OPERATOR_PORT)})
            ingress.append({"from": [_namespace("cnpg-system")], "ports": _tcp(5432, OPERATOR_PORT)})
            egress.append({"to": [own], "ports": _tcp(5432, OPERATOR_PORT)})
            egress.append(_api_server(topology))
            if topology.kubernetes.autoscaling:  # KEDA counts rollouts
                ingress.append({"from": [_namespace("keda")], "ports": _tcp(5432)})
        watched = (
            _ports(topology, kinds, component, "metrics")
            if component not in (ProcessRole.POSTGRES, ProcessRole.NATS, ProcessRole.MIGRATE)
            else []
        )
        if component == ProcessRole.ROLLOUT_SERVER:
            watched = _ports(topology, kinds, component, "http")
        if watched and topology.kubernetes.monitoring:
            scraper = {
                **_namespace(topology.kubernetes.monitoring_namespace),
                "podSelector": {"matchLabels": dict(PROMETHEUS)},
            }
            ingress.append({"from": [scraper], "ports": _tcp(*watched)})
        selector = {"matchLabels": dict(_of(topology, component))}
        yield _policy(topology, component, component, selector, ingress, egress)


def _api_server(topology: Topology) -> Object:
    """Egress to the API server. It is not a pod, so it has no labels: its addresses or, if the topology names none, its ports anywhere."""
    found: Object = {"ports": _tcp(*API_SERVER)}
    if topology.kubernetes.api_server:
        found["to"] = [{"ipBlock": {"cidr": network}} for network in topology.kubernetes.api_server]
    return found


def _makers(topology: Topology) -> Iterator[Object]:
    """Pools that create sandboxes as pods call the API server; other pools do not."""
    for role, pools in ((ProcessRole.RUNNER, topology.runners), (ProcessRole.VERIFIER, topology.verifiers)):
        for pool in pools:
            if makes_pods(pool):
                selector = {"matchLabels": labels(topology, role, pool.name)}
                name = f"{role}-{pool.name}-api-server"
                yield _policy(topology, name, role, selector, None, [_api_server(topology)])


def _sandboxes(topology: Topology) -> Iterator[Object]:
    """Sandboxes reach the gateways' port for sandboxes, by its address; no names, nothing else."""
    inside, outside = topology.kubernetes.sandbox_namespace, topology.kubernetes.namespace
    port = _tcp(topology.gateways.sandbox_port)
    gateways = {**_namespace(outside), **_peer(topology, ProcessRole.GATEWAY)}
    yield _policy(
        topology,
        "sandbox",
        SANDBOX,
        {"matchLabels": dict(SANDBOXES)},
        None,
        [{"to": [gateways], "ports": port}],
        namespace=inside,
    )
    selector = {"matchLabels": dict(_of(topology, ProcessRole.GATEWAY))}
    yield _policy(
        topology,
        "gateway-sandboxes",
        ProcessRole.GATEWAY,
        selector,
        [{"from": [_namespace(inside)], "ports": port}],
        None,
    )
