"""Rules of who reaches whom: other pods, other namespaces, the API server."""

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.cluster.objects import NATS, PART, PROMETHEUS, SANDBOXES, Object, called, namespace, selects
from orchestrator.cluster.policy.rules import Seen, rule

REACH = {
    "postgres": {"migrate", "orchestrator", "gateway", "runner", "verifier", "trainer", "web", "postgres"},
    "nats": {"orchestrator", "gateway", "runner", "verifier", "web", "nats"},
    "gateway": {"runner"},
    "rollout-server": {"gateway", "trainer", "rollout-server"},
}
"""Who may reach whom, of the run's own."""
OUTSIDE = {"postgres": {"cnpg-system", "keda"}}
"""Namespaces of operators that reach what they look after."""
SCRAPED = {"rollout-server": "http"}
"""The port that Prometheus reads, where it is not called metrics."""
NAME = "kubernetes.io/metadata.name"


def _component(selector: Object) -> str:
    wanted = selector.get("matchLabels") or {}
    return "postgres" if "cnpg.io/cluster" in wanted else str(wanted.get(PART, ""))


@rule
def default_deny(seen: Seen) -> Iterator[str]:
    """In every namespace nothing reaches anything, in either direction, unless a policy says so."""
    spaces = {namespace(pod.of) for pod in seen.pods}
    spaces |= {str(found["metadata"]["name"]) for found in seen.kind("Namespace")}
    for space in sorted(spaces):
        denied: set[str] = set()
        for found in seen.kind("NetworkPolicy"):
            spec = found.get("spec", {})
            if (
                namespace(found) == space
                and spec.get("podSelector") == {}
                and not spec.get("ingress")
                and not spec.get("egress")
            ):
                denied |= set(spec.get("policyTypes", []))
        if missing := {"Ingress", "Egress"} - denied:
            yield f"namespace {space}: no NetworkPolicy denies all {' and '.join(sorted(missing)).lower()}"


@rule
def own_network_policy(seen: Seen) -> Iterator[str]:
    """Every pod has a policy of its own that says whom it may talk to."""
    for pod in seen.pods:
        own = [
            found
            for found in seen.kind("NetworkPolicy")
            if namespace(found) == namespace(pod.of)
            and (found.get("spec", {}).get("podSelector") or {}).get("matchLabels")
            and selects(found["spec"]["podSelector"], pod.labels)
        ]
        if not own:
            yield f"{called(pod.of)}: no NetworkPolicy selects its pods, so they reach nothing and nobody them"


@rule
def reach(seen: Seen) -> Iterator[str]:
    """Rollout servers are reached by gateways and the trainer alone; gateways by runners and sandboxes; Postgres and NATS by who needs them."""
    for found in seen.kind("NetworkPolicy"):
        for server in _selected(seen, found):
            for entry in found.get("spec", {}).get("ingress") or []:
                if not entry.get("from"):
                    yield f"{called(found)}: everybody may reach {server}"
                for peer in entry.get("from") or []:
                    if said := _stranger(seen, found, server, peer, entry.get("ports") or []):
                        yield f"{called(found)}: {said}"


def _selected(seen: Seen, found: Object) -> list[str]:
    """Whose way in a policy opens. Pods of Postgres and NATS are others' to make: they are known by what a selector says."""
    selector = found.get("spec", {}).get("podSelector") or {}
    taken = {
        pod.component
        for pod in seen.pods
        if namespace(pod.of) == namespace(found) and selects(selector, pod.labels)
    }
    return [name for name in REACH if name in taken or name == _component(selector)]


def _stranger(seen: Seen, found: Object, server: str, peer: Object, ports: Sequence[Object]) -> str:
    """What is wrong with one of those who may reach a server; empty: nothing."""
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
    asked = {port.get("port") for port in ports}
    own = [pod.ports for pod in seen.pods if pod.component == server]

    def only(called_so: str) -> bool:
        return bool(asked) and asked <= {each.get(called_so) for each in own}

    if name == namespace(found) and client in REACH[server]:
        return ""
    if name in {namespace(each) for each in seen.kind("RoleBinding")}:
        allowed = server == "gateway" and only("sandboxes")
        return (
            "" if allowed else f"sandboxes may reach {server}: theirs is a gateway's port for sandboxes alone"
        )
    if name in OUTSIDE.get(server, ()):
        return ""
    scraper = (peer.get("podSelector") or {}).get("matchLabels") == PROMETHEUS
    if scraper and only(SCRAPED.get(server, "metrics")):
        return ""
    return f"namespace {name} may reach {server}: who looks in from outside is Prometheus's pods ({PROMETHEUS}), at the port that they read"


@rule
def labels_of_nats(seen: Seen) -> Iterator[str]:
    """NATS has the labels that its own chart gives: a policy that asks for others is about nobody, and nothing reaches it."""
    if any(pod.component == "nats" for pod in seen.pods):
        return  # it is made here, with labels of one's own
    for found in seen.kind("NetworkPolicy"):
        spec = found.get("spec", {})
        peers = [
            peer.get("podSelector")
            for way, end in (("ingress", "from"), ("egress", "to"))
            for entry in spec.get(way) or []
            for peer in entry.get(end) or []
        ]
        for selector in [spec.get("podSelector"), *peers]:
            wanted = (selector or {}).get("matchLabels") or {}
            if wanted.get(PART) == "nats" and any(
                wanted.get(key, value) != value for key, value in NATS.items()
            ):
                yield f"{called(found)}: pods of NATS have the labels {dict(NATS)}, not {dict(wanted)}"


@rule
def sandboxes_reach_gateways(seen: Seen) -> Iterator[str]:
    """A sandbox reaches the gateway's port for sandboxes, and nothing else: no names, no API server."""
    spaces = list(dict.fromkeys(namespace(found) for found in seen.kind("RoleBinding")))
    ways = [
        (found, entry)
        for found in seen.kind("NetworkPolicy")
        if namespace(found) in spaces
        for entry in found.get("spec", {}).get("egress") or []
    ]
    for found, entry in ways:
        peers = [_component(peer.get("podSelector") or {}) for peer in entry.get("to") or []]
        if peers != ["gateway"] or not entry.get("ports"):
            yield f"{called(found)}: sandboxes may reach more than a port of the gateways"
    for space in spaces:
        if not any(
            namespace(found) == space and selects(found["spec"].get("podSelector") or {}, SANDBOXES)
            for found, _ in ways
        ):
            yield f"namespace {space}: no NetworkPolicy lets pods with the labels of sandboxes reach the gateways"


@rule
def restricted_namespaces(seen: Seen) -> Iterator[str]:
    """The API server refuses what breaks the restricted Pod Security Standard, or, where sandboxes are made, the baseline one."""
    made_in = {namespace(found) for found in seen.kind("RoleBinding")}
    for found in seen.kind("Namespace"):
        labels = found.get("metadata", {}).get("labels") or {}
        wanted = ("baseline", "restricted") if found["metadata"]["name"] in made_in else ("restricted",)
        if labels.get("pod-security.kubernetes.io/enforce") not in wanted:
            yield f"{called(found)}: pod-security.kubernetes.io/enforce must be {' or '.join(wanted)}"


def _bound(seen: Seen) -> set[Any]:
    """Accounts that have rights."""
    return {
        subject.get("name") for found in seen.kind("RoleBinding") for subject in found.get("subjects", [])
    }


@rule
def api_server(seen: Seen) -> Iterator[str]:
    """Who has a token reaches the API server; of the others only Postgres, whose instances keep their state there."""
    ports = {443, 6443}
    for pod in seen.pods:
        open_to = [
            called(found)
            for found in seen.kind("NetworkPolicy")
            if namespace(found) == namespace(pod.of)
            and selects(found["spec"].get("podSelector") or {}, pod.labels)
            for entry in found["spec"].get("egress") or []
            if ports & {port.get("port") for port in entry.get("ports") or []}
            and all("ipBlock" in peer for peer in entry.get("to") or [])
        ]
        maker = pod.spec.get("serviceAccountName") in _bound(seen)
        if maker and not open_to:
            yield f"{called(pod.of)}: it makes sandboxes, but no NetworkPolicy lets it reach the API server"
        if open_to and not maker:
            yield f"{called(pod.of)}: {open_to[0]} lets it reach the API server, where it has nothing to do"


@rule
def tokens_of_the_api(seen: Seen) -> Iterator[str]:
    """Who makes sandboxes has a token of the API server, and nobody else."""
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
        for given in found.get("rules", []):
            if "*" in [*given.get("verbs", []), *given.get("resources", []), *given.get("apiGroups", [])]:
                yield f"{called(found)}: a rule with * gives more than is needed"
