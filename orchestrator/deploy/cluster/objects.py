"""Reading Kubernetes objects: the pods in them, and which selectors select which pods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]
PART = "app.kubernetes.io/component"
SANDBOXES: Mapping[str, str] = {"app.kubernetes.io/name": "penstock", PART: "sandbox"}
"""Labels of each pod that the provider `kubernetes` creates (sandboxes/kubernetes/objects.py), for every run."""
PROMETHEUS: Mapping[str, str] = {"app.kubernetes.io/name": "prometheus"}
"""Labels of Prometheus's pods, as its operator sets them."""
NATS: Mapping[str, str] = {"app.kubernetes.io/name": "nats", PART: "nats"}
"""Labels of each pod of the chart nats/nats. Its set selects by them, so its pods cannot have others."""
LONG_LIVED = ("Deployment", "StatefulSet", "DaemonSet", "LeaderWorkerSet")

MAX_NAME: Mapping[str, int] = {
    "StatefulSet": 52,
    "LeaderWorkerSet": 48,
    "ScaledObject": 54,
    "Deployment": 63,
    "Job": 63,
    "Service": 63,
}
"""Maximum length of names from which the cluster makes labels of at most 63 letters. It appends a hyphen and a revision of ten letters; for a
group, a number below a thousand before that. KEDA prepends `keda-hpa-`. A longer name is accepted, but gets no pod."""


def called(found: Object) -> str:
    """deployment/first-web"""
    return f"{str(found.get('kind', 'object')).lower()}/{found.get('metadata', {}).get('name', '?')}"


def namespace(found: Object) -> str:
    return str(found.get("metadata", {}).get("namespace", "default"))


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod template and the object that creates its pods. `leads`: it is not only a follower in a group."""

    of: Object
    template: Object
    leads: bool = True

    @property
    def labels(self) -> Mapping[str, str]:
        return self.template.get("metadata", {}).get("labels", {}) or {}

    @property
    def spec(self) -> Object:
        found: Object = self.template.get("spec", {})
        return found

    @property
    def component(self) -> str:
        return self.labels.get(PART, "")

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", []), *self.spec.get("containers", [])]

    @property
    def ports(self) -> dict[str, int]:
        return {
            port.get("name", ""): port.get("containerPort", 0)
            for container in self.spec.get("containers", [])
            for port in container.get("ports", [])
        }


def pods(objects: Sequence[Object]) -> Iterator[Pod]:
    """Every pod template of these objects."""
    for found in objects:
        kind, spec = found.get("kind"), found.get("spec") or {}
        if kind == "Pod":
            yield Pod(found, {"metadata": found.get("metadata", {}), "spec": spec})
        elif kind in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            yield Pod(found, spec.get("template", {}))
        elif kind == "CronJob":
            yield Pod(found, spec.get("jobTemplate", {}).get("spec", {}).get("template", {}))
        elif kind == "LeaderWorkerSet":
            group = spec.get("leaderWorkerTemplate", {})
            if "leaderTemplate" in group:
                yield Pod(found, group["leaderTemplate"])
            yield Pod(found, group.get("workerTemplate", {}), leads="leaderTemplate" not in group)


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches the labels. An empty one matches everything."""
    required = selector.get("matchLabels", {}) or {}
    if any(labels.get(key) != value for key, value in required.items()):
        return False
    for rule in selector.get("matchExpressions", []) or []:
        value, values = labels.get(rule["key"]), rule.get("values", [])
        satisfied = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[rule["operator"]]
        if not satisfied:
            return False
    return True


def unlabelled(found: Object) -> str:
    """Why the cluster could not make a label of an object's name; empty: it can."""
    longest = MAX_NAME.get(str(found.get("kind")), 253)
    length = len(str(found.get("metadata", {}).get("name", "")))
    if length <= longest:
        return ""
    return f"its name has {length} letters, and the cluster makes labels of at most {longest}"
