"""Kubernetes: the base of the run. Its namespaces and accounts, the shared directory, Postgres by CloudNativePG, NATS by its own chart."""

from typing import Any

from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.cluster.render.objects import (
    Object,
    made,
    named,
    unprivileged_context,
)
from orchestrator.deploy.cluster.topology import Topology

SANDBOXES = "sandbox"
# The sandbox provider's permissions at the API server (ops/guides/cluster-sandboxes.md).
RULES = (
    ([""], ["pods"], ["create", "get", "list", "watch", "delete"]),
    ([""], ["pods/exec"], ["create", "get"]),
    ([""], ["secrets"], ["create"]),
)


def namespaces(topology: Topology) -> list[Object]:
    """Pods in them must not be privileged: the API server refuses it. Each sandbox has a supervisor that is root in its pod (`baseline`)."""
    found = []
    standards = {
        topology.kubernetes.namespace: "restricted",
        topology.kubernetes.sandbox_namespace: "baseline",
    }
    for name, standard in standards.items():
        labelled = {
            "kubernetes.io/metadata.name": name,
            "pod-security.kubernetes.io/enforce": standard,
            "pod-security.kubernetes.io/warn": standard,
        }
        found.append(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labelled}}
        )
    return found


def accounts(topology: Topology) -> list[Object]:
    """One account without permissions, for most pods; one for pods that create sandboxes, which may do so in their namespace only."""
    inside = topology.kubernetes.sandbox_namespace
    name = named(topology, "sandboxes")
    rules = [
        {"apiGroups": groups, "resources": resources, "verbs": verbs} for groups, resources, verbs in RULES
    ]
    role = made(
        topology,
        "rbac.authorization.k8s.io/v1",
        "Role",
        "sandboxes",
        SANDBOXES,
        None,
        namespace=inside,
        rules=rules,
    )
    binding = made(
        topology,
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "sandboxes",
        SANDBOXES,
        None,
        namespace=inside,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": topology.kubernetes.namespace}],
    )
    unprivileged = made(
        topology, "v1", "ServiceAccount", "process", "process", None, automountServiceAccountToken=False
    )
    privileged = made(
        topology, "v1", "ServiceAccount", "sandboxes", SANDBOXES, None, automountServiceAccountToken=False
    )
    return [unprivileged, privileged, role, binding]


def shared(topology: Topology) -> list[Object]:
    """The directory for weights; none if the topology names an existing claim."""
    if topology.shared.claim:
        return []
    spec: Object = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{topology.shared.size_gb}G"}},
    }
    if topology.shared.storage_class:
        spec["storageClassName"] = topology.shared.storage_class
    return [made(topology, "v1", "PersistentVolumeClaim", "shared", "shared", spec)]


def postgres(topology: Topology) -> list[Object]:
    """A Cluster of CloudNativePG, which creates the Secret NAME-postgres-app with its `uri`. Migrations create roles, so the owner may."""
    postgres_settings = topology.postgres
    if postgres_settings.external:
        return []
    storage: Object = {"size": f"{postgres_settings.store_gb}G"}
    if topology.kubernetes.storage_class:
        storage["storageClass"] = topology.kubernetes.storage_class
    memory = f"{postgres_settings.resources.memory_gb:g}G"
    amount = {"cpu": f"{postgres_settings.resources.cpus:g}", "memory": memory}
    spec: Object = {
        "instances": postgres_settings.instances,
        "imageName": topology.images.postgres,
        "bootstrap": {
            "initdb": {
                "database": "penstock",
                "owner": "penstock",
                "postInitApplicationSQL": ["ALTER ROLE penstock CREATEROLE"],
            }
        },
        "storage": storage,
        "resources": {"requests": amount, "limits": dict(amount)},
        "postgresql": {
            "parameters": {
                "max_connections": "400",
                "createrole_self_grant": "set, inherit",  # the creator of a role may assume it
                "idle_in_transaction_session_timeout": "60s",
            }
        },
    }
    if postgres_settings.instances > 1:  # a commit is on two machines before it is acknowledged
        spec["postgresql"]["synchronous"] = {"method": "any", "number": 1}
    return [
        made(topology, "postgresql.cnpg.io/v1", "Cluster", ProcessRole.POSTGRES, ProcessRole.POSTGRES, spec)
    ]


def _nothing() -> Object:
    """The security context of a container without privileges."""
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def nats_values(topology: Topology) -> dict[str, Any]:
    """Values of the chart `nats` of the NATS project: JetStream on files, with the topology's number of servers. Its images run as root and its pods
    set no security context, which the namespace's standard (`restricted`) refuses. So each container sets it, also those that are off here."""
    nats = topology.nats
    image, _, tag = topology.images.nats.partition(":")
    storage: Object = {"enabled": True, "size": f"{nats.store_gb}Gi"}
    if topology.kubernetes.storage_class:
        storage["storageClassName"] = topology.kubernetes.storage_class
    repository = (
        {"repository": image, "tag": tag}
        if tag and "@" not in topology.images.nats
        else {"fullImageName": topology.images.nats}
    )
    amount = {"cpu": f"{nats.resources.cpus:g}", "memory": f"{nats.resources.memory_gb:g}G"}
    return {
        "fullnameOverride": named(topology, ProcessRole.NATS),
        "container": {
            "image": repository,
            "merge": {"resources": {"requests": amount, "limits": dict(amount)}, **_nothing()},
        },
        "reloader": {"merge": _nothing()},
        "promExporter": {"merge": _nothing()},
        "config": {
            "cluster": {"enabled": nats.nodes > 1, "replicas": nats.nodes, "port": nats.cluster_port},
            "jetstream": {
                "enabled": True,
                "fileStore": {"enabled": True, "pvc": storage},
            },
            "nats": {"port": nats.port},
            "monitor": {"enabled": True, "port": nats.monitor_port},
            "merge": {"max_payload": "<< 8MB >>"},
        },
        "natsBox": {
            "enabled": False,
            "container": {"merge": _nothing()},
            "podTemplate": {"merge": {"spec": {"securityContext": unprivileged_context()}}},
        },
        "podTemplate": {
            "merge": {
                "spec": {"securityContext": unprivileged_context(), "automountServiceAccountToken": False}
            }
        },
        "podDisruptionBudget": {"enabled": nats.nodes > 1},
    }
