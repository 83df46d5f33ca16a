"""Rules for containers, pods, and relations between objects."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.cluster.inline import login, secret_options
from orchestrator.deploy.cluster.objects import (
    LONG_LIVED,
    called,
    namespace,
    selects,
    unlabelled,
)
from orchestrator.deploy.cluster.policy.rules import RenderedObjects, rule

# --- containers -----------------------------------------------------------------------------------------------


@rule
def fixed_images(seen: RenderedObjects) -> Iterator[str]:
    """An image is named by digest or by a fixed tag, never :latest."""
    for location, _, container in seen.containers():
        image = str(container.get("image", ""))
        tag = image.rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            yield f"{location}: its image {quoted(image)} can change: name a digest or a fixed tag"


@rule
def limits(seen: RenderedObjects) -> Iterator[str]:
    """Every container has requests and limits for memory and CPU."""
    for location, _, container in seen.containers():
        resources = container.get("resources") or {}
        missing = [
            f"{side}.{resource}"
            for side in ("requests", "limits")
            for resource in ("cpu", "memory")
            if resource not in (resources.get(side) or {})
        ]
        if missing:
            yield f"{location}: resources has no {', '.join(missing)}"


@rule
def no_privileges(seen: RenderedObjects) -> Iterator[str]:
    """Containers are unprivileged, cannot gain privileges and drop all capabilities."""
    for location, _, container in seen.containers():
        context = container.get("securityContext") or {}
        if context.get("privileged"):
            yield f"{location}: it is privileged, which gives it the whole node"
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{location}: allowPrivilegeEscalation must be false"
        capabilities = context.get("capabilities") or {}
        if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
            yield f"{location}: capabilities must drop ALL and add none"


@rule
def not_root(seen: RenderedObjects) -> Iterator[str]:
    """Pods do not run as root and use the runtime's system call filter."""
    for pod in seen.pods:
        context = pod.spec.get("securityContext") or {}
        if context.get("runAsNonRoot") is not True or context.get("runAsUser", 1) == 0:
            yield f"{called(pod.of)}: runAsNonRoot must be true"
        if (context.get("seccompProfile") or {}).get("type") != "RuntimeDefault":
            yield f"{called(pod.of)}: seccompProfile must be RuntimeDefault"


@rule
def read_only_root(seen: RenderedObjects) -> Iterator[str]:
    """Containers write only to their volumes."""
    for location, _, container in seen.containers():
        if (container.get("securityContext") or {}).get("readOnlyRootFilesystem") is not True:
            yield f"{location}: readOnlyRootFilesystem must be true"


@rule
def nothing_of_the_node(seen: RenderedObjects) -> Iterator[str]:
    """Pods use no directory, network, process space or port of their node."""
    for pod in seen.pods:
        for volume in pod.spec.get("volumes", []):
            if "hostPath" in volume:
                yield f"{called(pod.of)}: volume {volume.get('name')} is a hostPath, a directory of the node"
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(key):
                yield f"{called(pod.of)}: {key} must not be set"
        if any(port.get("hostPort") for container in pod.containers for port in container.get("ports", [])):
            yield f"{called(pod.of)}: hostPort takes a port of the node"


@rule
def shared_memory(seen: RenderedObjects) -> Iterator[str]:
    """A trainer and SGLang have /dev/shm as a volume in memory with a limit: the runtime's default of 64 MB is too small for their ranks."""
    for location, pod, container in seen.containers():
        if container in pod.spec.get("initContainers", []):
            continue
        argv = [*container.get("command", []), *container.get("args", [])]
        if pod.component != ProcessRole.TRAINER and "sglang.launch_server" not in argv:
            continue
        mounted = {mount.get("mountPath"): mount.get("name") for mount in container.get("volumeMounts", [])}
        volumes = {volume.get("name"): volume.get("emptyDir") or {} for volume in pod.spec.get("volumes", [])}
        volume = volumes.get(mounted.get("/dev/shm"), {})
        if volume.get("medium") != "Memory" or not volume.get("sizeLimit"):
            yield f"{location}: /dev/shm must be an emptyDir in Memory with a sizeLimit"


# --- secrets --------------------------------------------------------------------------------------------------

_SECRET_NAME = re.compile(
    r"(PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|CREDENTIAL|DATABASE_URL|NATS_URL)$", re.IGNORECASE
)
_SECRET_TEXT = re.compile(r"(password|secret|token)\s*[:=]\s*[\"']?\w{6,}", re.IGNORECASE)


def _secret(text: str) -> bool:
    return login(text) or bool(_SECRET_TEXT.search(text))


@rule
def secrets_by_reference(seen: RenderedObjects) -> Iterator[str]:
    """Secrets are files or references, never text in an object."""
    for location, _, container in seen.containers():
        for variable in container.get("env", []):
            if "value" not in variable:
                continue
            name, value = str(variable.get("name")), str(variable["value"])
            if _SECRET_NAME.search(name) or _secret(value):
                yield f"{location}: {name} is a secret in plain environment: mount it, and name its file in {name}_FILE"
        argv = [*container.get("command", []), *container.get("args", [])]
        for option in secret_options(argv):
            yield f"{location}: {option} gives a secret on its command line, which every user of the node can read"
        for part in argv:
            if _secret(str(part)):
                yield f"{location}: its command line holds a secret, which every user of the node can read"
    for found in seen.kind("ConfigMap"):
        for key, text in (found.get("data") or {}).items():
            if login(str(text)):
                yield f"{called(found)}: {key} holds a login"
    for found in seen.kind("Secret"):
        if found.get("data") or found.get("stringData"):
            yield f"{called(found)}: a secret is written out in a file that people keep in git; make it with kubectl create secret"


# --- life -----------------------------------------------------------------------------------------------------


@rule
def probes(seen: RenderedObjects) -> Iterator[str]:
    """Long-lived containers have readiness and liveness probes at a declared port."""
    for pod in seen.pods:
        if pod.of.get("kind") not in LONG_LIVED or not pod.leads:
            continue
        for container in pod.spec.get("containers", []):
            location = f"{called(pod.of)}: container {container.get('name')}"
            named = {port.get("name"): port.get("containerPort") for port in container.get("ports", [])}
            for probe in ("readinessProbe", "livenessProbe"):
                if probe not in container:
                    yield f"{location}: it has no {probe}"
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                action = (
                    container.get(probe, {}).get("httpGet") or container.get(probe, {}).get("tcpSocket") or {}
                )
                port = action.get("port")
                if port is not None and port not in named and port not in named.values():
                    listed = ", ".join(f"{name} {number}" for name, number in named.items()) or "none"
                    yield f"{location}: {probe} asks at port {port}, and its ports are {listed}"


@rule
def paused_is_healthy(seen: RenderedObjects) -> Iterator[str]:
    """A rollout server that a weight sync pauses counts as healthy: no probe requests /health, /health_generate or /ready."""
    for location, pod, container in seen.containers():
        if pod.component != ProcessRole.ROLLOUT_SERVER:
            continue
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = ((container.get(probe) or {}).get("httpGet") or {}).get("path", "")
            if path in ("/health", "/health_generate", "/ready"):
                yield f"{location}: {probe} asks {path}, which says 503 while the server is paused: ask /model_info or /ping"


@rule
def sessions_stay(seen: RenderedObjects) -> Iterator[str]:
    """A draining gateway is not ready but keeps its sessions: its Service publishes not-ready addresses, and no probe kills it."""
    gateways = [pod for pod in seen.pods if pod.component == ProcessRole.GATEWAY]
    for found in seen.kind("Service"):
        spec = found.get("spec", {})
        selector = {"matchLabels": spec.get("selector") or {}}
        if not any(
            namespace(pod.of) == namespace(found) and selects(selector, pod.labels) for pod in gateways
        ):
            continue
        if spec.get("publishNotReadyAddresses") is not True or spec.get("clusterIP") != "None":
            yield f"{called(found)}: a session stays with its gateway: make it headless (clusterIP: None) with publishNotReadyAddresses"
    for pod in gateways:
        for container in pod.spec.get("containers", []):
            for probe in ("startupProbe", "livenessProbe"):
                action = (container.get(probe) or {}).get("httpGet") or {}
                if action.get("path") == "/readyz" and action.get("port") in ("http", pod.ports.get("http")):
                    yield f"{called(pod.of)}: {probe} asks /readyz at http, which says 503 while the gateway drains: ask at its metrics port"


@rule
def jobs_go(seen: RenderedObjects) -> Iterator[str]:
    """Jobs have a deadline and are removed after they end."""
    for found in seen.kind("Job"):
        for key in ("ttlSecondsAfterFinished", "activeDeadlineSeconds"):
            if key not in found.get("spec", {}):
                yield f"{called(found)}: spec has no {key}"


@rule
def schema_first(seen: RenderedObjects) -> Iterator[str]:
    """A Job runs `alembic upgrade head`, and every process of the product waits for it."""
    argv = [
        (pod.of.get("kind"), [*container.get("command", []), *container.get("args", [])])
        for pod in seen.pods
        for container in pod.spec.get("containers", [])
    ]
    if not any(kind == "Job" and parts[-3:] == ["alembic", "upgrade", "head"] for kind, parts in argv):
        yield "no Job runs `alembic upgrade head`"
    for pod in seen.pods:
        if pod.of.get("kind") not in LONG_LIVED or pod.component in ("", ProcessRole.ROLLOUT_SERVER):
            continue
        waiting = [
            [*each.get("command", []), *each.get("args", [])] for each in pod.spec.get("initContainers", [])
        ]
        if not any(parts[:3] == ["penstock", "cluster", "wait"] for parts in waiting):
            yield f"{called(pod.of)}: no init container waits for the schema (`penstock cluster wait`)"


@rule
def disruptions(seen: RenderedObjects) -> Iterator[str]:
    """Every replicated workload has a PodDisruptionBudget."""
    budgets = [
        (namespace(found), found.get("spec", {}).get("selector", {}))
        for found in seen.kind("PodDisruptionBudget")
    ]
    scaled = {
        found.get("spec", {}).get("scaleTargetRef", {}).get("name") for found in seen.kind("ScaledObject")
    }
    for pod in seen.pods:
        replicated = (pod.of.get("spec") or {}).get("replicas", 1) > 1 or pod.of.get("metadata", {}).get(
            "name"
        ) in scaled
        protected = any(
            budget_namespace == namespace(pod.of) and selects(selector, pod.labels)
            for budget_namespace, selector in budgets
        )
        if replicated and not protected:
            yield f"{called(pod.of)}: no PodDisruptionBudget selects its pods"


@rule
def one_trainer(seen: RenderedObjects) -> Iterator[str]:
    """A run has one trainer, and never two during a replacement."""
    found = {called(pod.of): pod.of for pod in seen.pods if pod.component == ProcessRole.TRAINER}
    for name, each in found.items():
        if each.get("spec", {}).get("replicas", 1) != 1:
            yield f"{name}: replicas must be 1"
        if each.get("kind") == "Deployment":
            yield f"{name}: a Deployment starts the next before the last is gone: make it a StatefulSet"
    if len(found) > 1:
        yield f"{' and '.join(found)}: one run has one trainer"


@rule
def scaling(seen: RenderedObjects) -> Iterator[str]:
    """Only Deployments of runners and verifiers are autoscaled, and they declare no replicas."""
    by_name = {called(pod.of): pod for pod in seen.pods}
    for found in [*seen.kind("ScaledObject"), *seen.kind("HorizontalPodAutoscaler")]:
        target = found.get("spec", {}).get("scaleTargetRef", {})
        pod = by_name.get(f"{str(target.get('kind', 'Deployment')).lower()}/{target.get('name')}")
        if pod is None:
            yield f"{called(found)}: {target.get('kind', 'Deployment')} {target.get('name')} does not exist"
        elif pod.component not in WORKERS or pod.of.get("kind") != "Deployment":
            yield f"{called(found)}: {called(pod.of)} owns leases or state ({pod.component}): it must not be scaled by itself"
        elif "replicas" in pod.of.get("spec", {}):
            yield f"{called(pod.of)}: it says replicas, which {called(found)} decides: every apply would undo the scaling"


_BUSY_STATE: Mapping[str, str] = {ProcessRole.RUNNER: "'running'", ProcessRole.VERIFIER: "'verifying'"}


@rule
def busy_counts(seen: RenderedObjects) -> Iterator[str]:
    """Autoscalers count queued and running rollouts. With queued ones alone they would stop busy runners."""
    by_name = {called(pod.of): pod for pod in seen.pods}
    for found in seen.kind("ScaledObject"):
        target = found.get("spec", {}).get("scaleTargetRef", {})
        pod = by_name.get(f"{str(target.get('kind', 'Deployment')).lower()}/{target.get('name')}")
        busy_state = _BUSY_STATE.get(pod.component if pod else "", "")
        for trigger in found.get("spec", {}).get("triggers", []) if busy_state else ():
            query = str((trigger.get("metadata") or {}).get("query", ""))
            if trigger.get("type") != "postgresql" or busy_state not in query or "lease_owner" not in query:
                yield f"{called(found)}: its trigger {trigger.get('type')} does not count rollouts that are {busy_state} by their lease_owner"


# --- what belongs together ------------------------------------------------------------------------------------


@rule
def selectors(seen: RenderedObjects) -> Iterator[str]:
    """Every selector matches: a workload's its template, a Service's or monitor's pods with the named port."""
    for pod in seen.pods:
        if pod.of.get("kind") in ("Deployment", "StatefulSet", "DaemonSet") and not selects(
            pod.of.get("spec", {}).get("selector") or {"matchLabels": {"": "none"}}, pod.labels
        ):
            yield f"{called(pod.of)}: its selector does not take the labels of its own pods"
    for found in seen.kind("Service"):
        selector = {"matchLabels": found.get("spec", {}).get("selector") or {}}
        matching = [
            pod
            for pod in seen.pods
            if namespace(pod.of) == namespace(found) and selects(selector, pod.labels)
        ]
        if not matching:
            yield f"{called(found)}: its selector takes no pod"
        for port in found.get("spec", {}).get("ports", []):
            target = port.get("targetPort", port.get("port"))
            if matching and not any(target in pod.ports or target in pod.ports.values() for pod in matching):
                yield f"{called(found)}: no container has the port {target}"
    for found in seen.kind("PodMonitor"):
        spec = found.get("spec", {})
        for end in spec.get("podMetricsEndpoints", []):
            if not any(
                selects(spec.get("selector", {}), pod.labels) and end.get("port") in pod.ports
                for pod in seen.pods
            ):
                yield f"{called(found)}: no pod that it selects has the port {end.get('port')}"


@rule
def references(seen: RenderedObjects) -> Iterator[str]:
    """Every reference resolves: service accounts, ConfigMaps, volumes, a StatefulSet's Service, a trigger's login."""
    existing = {
        (str(found.get("kind")), str(found.get("metadata", {}).get("name"))) for found in seen.objects
    }
    for pod in seen.pods:
        names: list[tuple[str, Any]] = [("ServiceAccount", pod.spec.get("serviceAccountName"))]
        names += [
            ("ConfigMap", (volume.get("configMap") or {}).get("name"))
            for volume in pod.spec.get("volumes", [])
        ]
        if pod.of.get("kind") == "StatefulSet":
            names.append(("Service", pod.of.get("spec", {}).get("serviceName")))
        for kind, name in names:
            if name is not None and (kind, str(name)) not in existing:
                yield f"{called(pod.of)}: {kind} {name} does not exist"
        volumes = {volume.get("name") for volume in pod.spec.get("volumes", [])}
        volumes |= {
            claim["metadata"]["name"] for claim in pod.of.get("spec", {}).get("volumeClaimTemplates", [])
        }
        for container in pod.containers:
            for mount in container.get("volumeMounts", []):
                if mount.get("name") not in volumes:
                    yield f"{called(pod.of)}: container {container.get('name')} mounts {mount.get('name')}, which is not a volume of the pod"
    for found in seen.kind("ScaledObject"):
        for trigger in found.get("spec", {}).get("triggers", []):
            name = (trigger.get("authenticationRef") or {}).get("name")
            if name is not None and ("TriggerAuthentication", str(name)) not in existing:
                yield f"{called(found)}: TriggerAuthentication {name} does not exist"


@rule
def names_fit(seen: RenderedObjects) -> Iterator[str]:
    """Names fit into labels. A longer name is accepted, but its pods are never created."""
    for found in seen.objects:
        if problem := unlabelled(found):
            yield f"{called(found)}: {problem}"


@rule
def each_once(seen: RenderedObjects) -> Iterator[str]:
    """Objects are unique."""
    names = [(str(found.get("apiVersion")), called(found), namespace(found)) for found in seen.objects]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name[1]}: it appears twice in {name[2]}: the later one wins"
