"""Rules for network access: other pods, other namespaces, the API server."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.deploy.cluster.objects import (
    NATS,
    PART,
    PROMETHEUS,
    SANDBOXES,
    Object,
    called,
    namespace,
    selects,
)
from orchestrator.deploy.cluster.policy.rules import RenderedObjects, rule

_PRODUCT = {ProcessRole.ORCHESTRATOR, ProcessRole.GATEWAY, *WORKERS, ProcessRole.WEB}
REACH: Mapping[str, Set[str]] = {
    ProcessRole.POSTGRES: {ProcessRole.MIGRATE, ProcessRole.TRAINER, ProcessRole.POSTGRES, *_PRODUCT},
    ProcessRole.NATS: {ProcessRole.NATS, *_PRODUCT},
    ProcessRole.GATEWAY: {ProcessRole.RUNNER},
    ProcessRole.ROLLOUT_SERVER: {ProcessRole.GATEWAY, ProcessRole.TRAINER, ProcessRole.ROLLOUT_SERVER},
}
"""Allowed connections between the run's own components."""
OUTSIDE: Mapping[str, Set[str]] = {ProcessRole.POSTGRES: {"cnpg-system", "keda"}}
"""Namespaces of operators that reach the pods that they manage."""
SCRAPED: Mapping[str, str] = {ProcessRole.ROLLOUT_SERVER: "http"}
"""The port that Prometheus reads, if it is not called metrics."""
NAME = "kubernetes.io/metadata.name"


def _component(selector: Object) -> str:
    match_labels = selector.get("matchLabels") or {}
    return ProcessRole.POSTGRES if "cnpg.io/cluster" in match_labels else str(match_labels.get(PART, ""))


@rule
def default_deny(seen: RenderedObjects) -> Iterator[str]:
    """Every namespace denies all traffic in both directions by default."""
    spaces = {namespace(pod.of) for pod in seen.pods}
    spaces |= {str(found["metadata"]["name"]) for found in seen.kind("Namespace")}
    for namespace_name in sorted(spaces):
        denied: set[str] = set()
        for found in seen.kind("NetworkPolicy"):
            spec = found.get("spec", {})
            if (
                namespace(found) == namespace_name
                and spec.get("podSelector") == {}
                and not spec.get("ingress")
                and not spec.get("egress")
            ):
                denied |= set(spec.get("policyTypes", []))
        if missing := {"Ingress", "Egress"} - denied:
            yield f"namespace {namespace_name}: no NetworkPolicy denies all {' and '.join(sorted(missing)).lower()}"


@rule
def own_network_policy(seen: RenderedObjects) -> Iterator[str]:
    """Every pod has its own NetworkPolicy."""
    for pod in seen.pods:
        own = [
            found
            for found in seen.kind("NetworkPolicy")
            if namespace(found) == namespace(pod.of)
            and (found.get("spec", {}).get("podSelector") or {}).get("matchLabels")
            and selects(found["spec"]["podSelector"], pod.labels)
        ]
        if not own:
            yield f"{called(pod.of)}: no NetworkPolicy selects its pods, so no traffic from or to them is allowed"


@rule
def reach(seen: RenderedObjects) -> Iterator[str]:
    """Each server accepts only its own clients (`REACH`): a rollout server gateways and the trainer, a gateway runners and sandboxes."""
    for found in seen.kind("NetworkPolicy"):
        for server in _selected(seen, found):
            for entry in found.get("spec", {}).get("ingress") or []:
                if not entry.get("from"):
                    yield f"{called(found)}: any client may reach {server}"
                for peer in entry.get("from") or []:
                    if problem := _stranger(seen, found, server, peer, entry.get("ports") or []):
                        yield f"{called(found)}: {problem}"


def _selected(seen: RenderedObjects, found: Object) -> list[str]:
    """The components that a policy opens for ingress. Pods of Postgres and NATS are created elsewhere, and are recognised by the selector."""
    selector = found.get("spec", {}).get("podSelector") or {}
    selected = {
        pod.component
        for pod in seen.pods
        if namespace(pod.of) == namespace(found) and selects(selector, pod.labels)
    }
    return [name for name in REACH if name in selected or name == _component(selector)]


def _stranger(
    seen: RenderedObjects, found: Object, server: str, peer: Object, ports: Sequence[Object]
) -> str:
    """The problem with one allowed client of a server; empty: none."""
    if "ipBlock" in peer:
        return f"addresses may reach {server}: name pods"
    client = _component(peer.get("podSelector") or {})
    if "namespaceSelector" not in peer:
        return (
            ""
            if client in REACH[server]
            else f"{client or 'every pod'} may reach {server}, which is for {', '.join(sorted(REACH[server]))}"
        )
    selector = peer["namespaceSelector"] or {}
    name = (selector.get("matchLabels") or {}).get(NAME, "")
    if not name:
        return f"pods of every namespace that {selector or 'there is'} may reach {server}: name one by {NAME}"
    opened = {port.get("port") for port in ports}
    own = [pod.ports for pod in seen.pods if pod.component == server]

    def only(called_so: str) -> bool:
        return bool(opened) and opened <= {each.get(called_so) for each in own}

    if name == namespace(found) and client in REACH[server]:
        return ""
    if name in {namespace(each) for each in seen.kind("RoleBinding")}:
        allowed = server == ProcessRole.GATEWAY and only("sandboxes")
        return (
            "" if allowed else f"sandboxes may reach {server}: allow them only a gateway's port for sandboxes"
        )
    if name in OUTSIDE.get(server, ()):
        return ""
    scraper = (peer.get("podSelector") or {}).get("matchLabels") == PROMETHEUS
    if scraper and only(SCRAPED.get(server, "metrics")):
        return ""
    return f"namespace {name} may reach {server}: from outside only Prometheus's pods ({PROMETHEUS}) may, at the port that they read"


@rule
def labels_of_nats(seen: RenderedObjects) -> Iterator[str]:
    """Policies select NATS by the labels of its own chart. With other labels a policy selects no pod, and nothing reaches NATS."""
    if any(pod.component == ProcessRole.NATS for pod in seen.pods):
        return  # it is created here, with our own labels
    for found in seen.kind("NetworkPolicy"):
        spec = found.get("spec", {})
        peers = [
            peer.get("podSelector")
            for direction, peer_key in (("ingress", "from"), ("egress", "to"))
            for entry in spec.get(direction) or []
            for peer in entry.get(peer_key) or []
        ]
        for selector in [spec.get("podSelector"), *peers]:
            match_labels = (selector or {}).get("matchLabels") or {}
            if match_labels.get(PART) == ProcessRole.NATS and any(
                match_labels.get(key, value) != value for key, value in NATS.items()
            ):
                yield f"{called(found)}: pods of NATS have the labels {dict(NATS)}, not {dict(match_labels)}"


@rule
def sandboxes_reach_gateways(seen: RenderedObjects) -> Iterator[str]:
    """A sandbox reaches only the gateway's port for sandboxes: no DNS, no API server."""
    spaces = list(dict.fromkeys(namespace(found) for found in seen.kind("RoleBinding")))
    ways = [
        (found, entry)
        for found in seen.kind("NetworkPolicy")
        if namespace(found) in spaces
        for entry in found.get("spec", {}).get("egress") or []
    ]
    for found, entry in ways:
        peers = [_component(peer.get("podSelector") or {}) for peer in entry.get("to") or []]
        if peers != [ProcessRole.GATEWAY] or not entry.get("ports"):
            yield f"{called(found)}: sandboxes may reach more than a port of the gateways"
    for namespace_name in spaces:
        if not any(
            namespace(found) == namespace_name and selects(found["spec"].get("podSelector") or {}, SANDBOXES)
            for found, _ in ways
        ):
            yield f"namespace {namespace_name}: no NetworkPolicy lets pods with the labels of sandboxes reach the gateways"


@rule
def restricted_namespaces(seen: RenderedObjects) -> Iterator[str]:
    """Namespaces enforce the restricted Pod Security Standard; a namespace of sandboxes may enforce the baseline one."""
    bound = {namespace(found) for found in seen.kind("RoleBinding")}
    for found in seen.kind("Namespace"):
        labels = found.get("metadata", {}).get("labels") or {}
        permitted = ("baseline", "restricted") if found["metadata"]["name"] in bound else ("restricted",)
        if labels.get("pod-security.kubernetes.io/enforce") not in permitted:
            yield f"{called(found)}: pod-security.kubernetes.io/enforce must be {' or '.join(permitted)}"


def _bound(seen: RenderedObjects) -> set[Any]:
    """Accounts with permissions."""
    return {
        subject.get("name") for found in seen.kind("RoleBinding") for subject in found.get("subjects", [])
    }


@rule
def api_server(seen: RenderedObjects) -> Iterator[str]:
    """Only pods with a token, and Postgres, can reach the API server: instances of Postgres keep their state there."""
    ports = {443, 6443}
    for pod in seen.pods:
        reached = [
            called(found)
            for found in seen.kind("NetworkPolicy")
            if namespace(found) == namespace(pod.of)
            and selects(found["spec"].get("podSelector") or {}, pod.labels)
            for entry in found["spec"].get("egress") or []
            if ports & {port.get("port") for port in entry.get("ports") or []}
            and all("ipBlock" in peer for peer in entry.get("to") or [])
        ]
        makes_sandboxes = pod.spec.get("serviceAccountName") in _bound(seen)
        if makes_sandboxes and not reached:
            yield f"{called(pod.of)}: it makes sandboxes, but no NetworkPolicy lets it reach the API server"
        if reached and not makes_sandboxes:
            yield f"{called(pod.of)}: {reached[0]} lets it reach the API server, which it does not need"


@rule
def tokens_of_the_api(seen: RenderedObjects) -> Iterator[str]:
    """Only processes that create sandboxes have a token of the API server."""
    bound = _bound(seen)
    for pod in seen.pods:
        mounted = pod.spec.get("automountServiceAccountToken")
        if (pod.spec.get("serviceAccountName") in bound) and mounted is not True:
            yield f"{called(pod.of)}: its account may make sandboxes, but automountServiceAccountToken is not true: it could make none"
        elif pod.spec.get("serviceAccountName") not in bound and mounted is not False:
            yield f"{called(pod.of)}: automountServiceAccountToken must be false"
    for found in seen.kind("ClusterRole", "ClusterRoleBinding"):
        yield f"{called(found)}: rights in the whole cluster are not needed"
    for found in seen.kind("Role"):
        for role_rule in found.get("rules", []):
            if "*" in [
                *role_rule.get("verbs", []),
                *role_rule.get("resources", []),
                *role_rule.get("apiGroups", []),
            ]:
                yield f"{called(found)}: a rule with * gives more than is needed"
