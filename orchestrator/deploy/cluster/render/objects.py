"""Building blocks of Kubernetes objects: names and labels, restricted pods, containers with probes and limits."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.contracts.languages import without_interpolation
from orchestrator.deploy.cluster.topology import (
    Resources,
    RunnerPool,
    SecretKey,
    Topology,
)

Object = dict[str, Any]

HOME = "/penstock"
SECRETS = "/run/secrets/penstock"
TRUTH = "/opt/penstock"  # of the image: the directory of alembic.ini
USER = 10001
METRICS = "metrics"
PROVIDER = "kubernetes"  # of sandboxes, if the topology names none


def makes_pods(pool: RunnerPool) -> bool:
    """Whether a pool's sandboxes are pods, which it creates at the API server: by the target's own provider, or by name."""
    return pool.provider in ("", PROVIDER)


def labels(topology: Topology, component: str, pool: str = "") -> dict[str, str]:
    """Labels of an object and of a pod, also for its selector."""
    found = {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/instance": topology.name,
        "app.kubernetes.io/component": component,
    }
    return {**found, "penstock/pool": pool} if pool else found


def named(topology: Topology, name: str) -> str:
    """The name of an object of the run."""
    return f"{topology.name}-{name}"


def made(
    topology: Topology,
    api: str,
    kind: str,
    name: str,
    component: str,
    spec: Mapping[str, Any] | None,
    *,
    namespace: str = "",
    pool: str = "",
    **others: Any,
) -> Object:
    """One object, in the run's namespace unless another is given."""
    found: Object = {
        "apiVersion": api,
        "kind": kind,
        "metadata": {
            "name": named(topology, name),
            "namespace": namespace or topology.kubernetes.namespace,
            "labels": labels(topology, component, pool),
        },
    }
    if spec is not None:
        found["spec"] = dict(spec)
    return {**found, **others}


def secret_directory(name: str) -> str:
    """The mount path of a secret."""
    return f"{SECRETS}/{name}"


def secret_file(key: SecretKey) -> str:
    """The file of one of its keys."""
    return f"{secret_directory(key.name)}/{key.key}"


def quantities(resources: Resources, gpus: int = 0, gpu_resource: str = "") -> Object:
    """Requests and limits. They are equal, so that a process is not evicted for another one's bursts."""
    memory, disk = f"{resources.memory_gb:g}G", f"{resources.disk_gb:g}G"
    amounts = {"memory": memory, "ephemeral-storage": disk, **({gpu_resource: str(gpus)} if gpus else {})}
    return {
        "requests": {"cpu": f"{resources.cpus:g}", **amounts},
        "limits": {"cpu": f"{resources.cpus:g}", **amounts},
    }


def container(
    name: str,
    image: str,
    argv: Sequence[str],
    *,
    environment: Sequence[Object] = (),
    ports: Mapping[str, int] | None = None,
    mounts: Sequence[Object] = (),
    resources: Object,
    probes: Mapping[str, Any] | None = None,
    **others: Any,
) -> Object:
    """A container that may write only to its volumes, and cannot gain privileges. `$` in `argv` and `environment` begins no variable."""
    words = without_interpolation(list(argv))
    found: Object = {"name": name, "image": image, "command": words[:1], "args": words[1:]}
    if environment:
        found["env"] = without_interpolation(list(environment))
    if ports:
        found["ports"] = [{"name": port_name, "containerPort": port} for port_name, port in ports.items()]
    found["resources"] = resources
    found["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    found["volumeMounts"] = list(mounts)
    return {**found, **(probes or {}), **others}


def pod(
    topology: Topology,
    component: str,
    *,
    pool: str = "",
    containers: Sequence[Object],
    volumes: Sequence[Object],
    grace_s: int,
    selector: Mapping[str, str] | None = None,
    init: Sequence[Object] = (),
    annotations: Mapping[str, str] | None = None,
    account: str = "",
    spread: bool = False,
    gpus: int = 0,
    **others: Any,
) -> Object:
    """A pod template: not root, no token of the API server unless it has its own account, no variables of other services."""
    spec: Object = {
        "serviceAccountName": account or named(topology, "process"),
        "automountServiceAccountToken": bool(account),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": unprivileged_context(),
    }
    if selector:
        spec["nodeSelector"] = dict(selector)
    if gpus:
        spec["tolerations"] = [
            {"key": topology.kubernetes.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}
        ]
    if spread:  # one node's loss should not take two of them
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels(topology, component, pool)},
            }
        ]
    if init:
        spec["initContainers"] = list(init)
    metadata: Object = {"labels": labels(topology, component, pool)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "metadata": metadata,
        "spec": {**spec, "containers": list(containers), "volumes": list(volumes), **others},
    }


def unprivileged_context() -> Object:
    """The security context of a pod. One user for all of its containers: a reloader must be able to signal its neighbour."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def http(path: str, port: str, *, period_s: int, failures: int, timeout_s: int = 5) -> Object:
    """A probe."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def own_probes(ready_port: str = METRICS, start_s: int = 300) -> Object:
    """Probes of the product's processes. `/healthz` answers as long as the interpreter runs, and the watchdog ends a process whose event loop
    hangs. `/readyz` answers once it has found its run and its services. A draining gateway answers 503 at its own port (`ready_port`), which only
    readiness queries: it takes no new session. Its container must not end because of that and, if it restarts while draining, must still start."""
    return {
        "startupProbe": http("/readyz", METRICS, period_s=2, failures=start_s // 2),
        "readinessProbe": http("/readyz", ready_port, period_s=5, failures=2),
        "livenessProbe": http("/healthz", METRICS, period_s=20, failures=6, timeout_s=10),
    }


def server_probes(start_s: int) -> Object:
    """Probes of rollout servers. `/model_info` answers at once, even while a weight sync pauses the server. `/health` would generate, and answers 503
    while it is paused: a healthy server would be killed in the middle of a sync."""
    return {
        "startupProbe": http("/model_info", "http", period_s=5, failures=start_s // 5),
        "readinessProbe": http("/model_info", "http", period_s=5, failures=2),
        "livenessProbe": http("/ping", "http", period_s=20, failures=6, timeout_s=10),
    }


def disruption(topology: Topology, name: str, component: str, pool: str = "") -> Object:
    """At most one pod may be evicted at a time."""
    return made(
        topology,
        "policy/v1",
        "PodDisruptionBudget",
        name,
        component,
        {"maxUnavailable": 1, "selector": {"matchLabels": labels(topology, component, pool)}},
        pool=pool,
    )


def headless(
    topology: Topology, name: str, component: str, ports: Mapping[str, int], pool: str = ""
) -> Object:
    """A DNS name for each pod of a set, including pods that are not ready: clients check each pod themselves, and the sessions of a draining
    gateway, which is not ready, are only at its address."""
    return made(
        topology,
        "v1",
        "Service",
        name,
        component,
        {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(topology, component, pool),
            "ports": [
                {"name": port_name, "port": port, "targetPort": port_name}
                for port_name, port in ports.items()
            ],
        },
        pool=pool,
    )
