"""Kubernetes: what lies below the run. Its namespaces and accounts, the shared directory, Postgres by CloudNativePG, NATS by its own chart."""

from typing import Any

from orchestrator.cluster.render.objects import Object, made, named, nobody
from orchestrator.cluster.topology import Topology

SANDBOXES = "sandbox"
# What the sandbox provider needs of the API server (ops/guides/cluster-sandboxes.md).
RULES = (
    ([""], ["pods"], ["create", "get", "list", "watch", "delete"]),
    ([""], ["pods/exec"], ["create", "get"]),
    ([""], ["secrets"], ["create"]),
)


def namespaces(topology: Topology) -> list[Object]:
    """Nothing in them may be privileged: the API server itself refuses it. Each sandbox has a keeper that is root in its pod (`baseline`)."""
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
    """One that may do nothing, for everybody; one for those who make sandboxes, which may do so in their namespace alone."""
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
        topology, "rbac.authorization.k8s.io/v1", "RoleBinding", "sandboxes", SANDBOXES, None, namespace=inside,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": topology.kubernetes.namespace}],
    )  # fmt: skip
    nobody = made(
        topology, "v1", "ServiceAccount", "process", "process", None, automountServiceAccountToken=False
    )
    maker = made(
        topology, "v1", "ServiceAccount", "sandboxes", SANDBOXES, None, automountServiceAccountToken=False
    )
    return [nobody, maker, role, binding]


def shared(topology: Topology) -> list[Object]:
    """The directory for weights; none where the topology names a claim that is there."""
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
    """A Cluster of CloudNativePG, which makes the Secret NAME-postgres-app with its `uri`. Migrations make roles, so the owner may."""
    of = topology.postgres
    if of.external:
        return []
    storage: Object = {"size": f"{of.store_gb}G"}
    if topology.kubernetes.storage_class:
        storage["storageClass"] = topology.kubernetes.storage_class
    memory = f"{of.resources.memory_gb:g}G"
    amount = {"cpu": f"{of.resources.cpus:g}", "memory": memory}
    spec: Object = {
        "instances": of.instances,
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
                "createrole_self_grant": "set, inherit",  # who makes a role may take it
                "idle_in_transaction_session_timeout": "60s",
            }
        },
    }
    if of.instances > 1:  # a commit is on two machines before anything is acknowledged
        spec["postgresql"]["synchronous"] = {"method": "any", "number": 1}
    return [made(topology, "postgresql.cnpg.io/v1", "Cluster", "postgres", "postgres", spec)]


def _nothing() -> Object:
    """Of a container."""
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def nats_values(topology: Topology) -> dict[str, Any]:
    """Values of the chart `nats` of the NATS project: JetStream on files, as many servers as the topology says. Its images run as root and its pods
    say nothing of what they may do, which the namespace's standard (`restricted`) refuses: each container says it, also those that are off here."""
    of = topology.nats
    image, _, tag = topology.images.nats.partition(":")
    storage: Object = {"enabled": True, "size": f"{of.store_gb}Gi"}
    if topology.kubernetes.storage_class:
        storage["storageClassName"] = topology.kubernetes.storage_class
    repository = (
        {"repository": image, "tag": tag}
        if tag and "@" not in topology.images.nats
        else {"fullImageName": topology.images.nats}
    )
    amount = {"cpu": f"{of.resources.cpus:g}", "memory": f"{of.resources.memory_gb:g}G"}
    return {
        "fullnameOverride": named(topology, "nats"),
        "container": {
            "image": repository,
            "merge": {"resources": {"requests": amount, "limits": dict(amount)}, **_nothing()},
        },
        "reloader": {"merge": _nothing()},
        "promExporter": {"merge": _nothing()},
        "config": {
            "cluster": {"enabled": of.nodes > 1, "replicas": of.nodes, "port": of.cluster_port},
            "jetstream": {
                "enabled": True,
                "fileStore": {"enabled": True, "pvc": storage},
            },
            "nats": {"port": of.port},
            "monitor": {"enabled": True, "port": of.monitor_port},
            "merge": {"max_payload": "<< 8MB >>"},
        },
        "natsBox": {
            "enabled": False,
            "container": {"merge": _nothing()},
            "podTemplate": {"merge": {"spec": {"securityContext": nobody()}}},
        },
        "podTemplate": {
            "merge": {"spec": {"securityContext": nobody(), "automountServiceAccountToken": False}}
        },
        "podDisruptionBudget": {"enabled": of.nodes > 1},
    }
