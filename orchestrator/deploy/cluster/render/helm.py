"""A Helm chart of one topology: the plain objects, with values for the settings that people change without rendering again.

The same code creates the objects. It renders a topology whose numbers and images carry the names of their values, and writes those names in
their place. Settings that change the set of objects, or penstock.toml, are not values: they belong to the topology.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

from orchestrator.deploy.cluster.render import kubernetes, services
from orchestrator.deploy.cluster.render.text import (
    PLACE,
    PlaceholderNumber,
    documents,
    to_yaml,
)
from orchestrator.deploy.cluster.topology import ServerEngine, Topology

END = "\u27e7"
RESOURCES = ("cpus", "memory_gb", "disk_gb")
OPTIONAL = "60-monitoring"
SCALED = ("runners", "verifiers")
Path = tuple[str, ...]


class _Number(PlaceholderNumber):
    """A whole number that represents a value."""

    def __new__(cls, value: int, place: str) -> "_Number":
        number = super().__new__(cls, value)
        number.place = place
        return number

    def __format__(self, how: str) -> str:
        return self.place

    def __str__(self) -> str:
        return self.place


class _Amount(float):
    """A number that represents a value, inside a quantity."""

    place: str

    def __new__(cls, value: float, place: str) -> "_Amount":
        amount = super().__new__(cls, value)
        amount.place = place
        return amount

    def __format__(self, how: str) -> str:
        return self.place


def parameters(topology: Topology) -> Iterator[Path]:
    """The values of the chart, by their path in the topology; pools by their name."""
    yield "images", "penstock"
    if any(pool.engine is ServerEngine.SGLANG for pool in topology.servers):
        yield "images", "sglang"
    if not topology.postgres.external:
        yield "images", "postgres"
        yield "postgres", "store_gb"
        yield from (("postgres", "resources", key) for key in RESOURCES[:2])
    if not topology.shared.claim:
        yield "shared", "size_gb"
    yield "orchestrators", "replicas"
    yield "gateways", "journal_gb"
    roles = ("orchestrators", "gateways", "trainer", *(["web"] if topology.web.replicas else []))
    yield from ((role, "resources", key) for role in roles for key in RESOURCES)
    for section in ("runners", "verifiers", "servers"):
        for pool in getattr(topology, section):
            yield from ((section, pool.name, "resources", key) for key in RESOURCES)
            if section != "servers" and pool.max_replicas and topology.kubernetes.autoscaling:
                yield section, pool.name, "replicas"


def value(topology: Topology, path: Path) -> Any:
    """The topology's value at a path."""
    node: Any = topology
    for part in path:
        node = (
            next(each for each in node if each.name == part)
            if isinstance(node, tuple)
            else getattr(node, part)
        )
    return node


def with_value(node: Any, path: Path, new: Any) -> Any:
    """A copy of the topology with another value at a path."""
    if not path:
        return new
    part, rest = path[0], path[1:]
    if isinstance(node, tuple):
        return tuple(with_value(each, rest, new) if each.name == part else each for each in node)
    assert isinstance(node, BaseModel)
    return node.model_copy(update={part: with_value(getattr(node, part), rest, new)})


def values(topology: Topology) -> dict[str, Any]:
    """values.yaml."""
    found: dict[str, Any] = {"monitoring": topology.kubernetes.monitoring}
    for path in parameters(topology):
        node = found
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value(topology, path)
    return found


def _place(path: Path) -> str:
    return f"{PLACE}{'/'.join(path)}{END}"


def _marked(topology: Topology) -> Topology:
    for path in parameters(topology):
        current, placeholder = value(topology, path), _place(path)
        marked: Any = (
            placeholder
            if isinstance(current, str)
            else _Number(current, placeholder)
            if isinstance(current, int)
            else _Amount(current, placeholder)
        )
        topology = with_value(topology, path, marked)
    return topology


def _parts(marked: Topology) -> list[kubernetes.ManifestPart]:
    """The topology's parts. Scrape objects are always included: a value decides about their use. Network policies follow the topology."""
    watched = marked.kubernetes.model_copy(update={"monitoring": True})
    more = kubernetes.parts(marked.model_copy(update={"kubernetes": watched}))
    return [
        *(part for part in kubernetes.parts(marked) if part.name != OPTIONAL),
        *(part for part in more if part.name == OPTIONAL),
    ]


def _reference(path: Path) -> str:
    keys = " ".join(json.dumps(part) for part in path)
    return (
        ".Values." + ".".join(path)
        if all(part.isidentifier() for part in path)
        else f"(index .Values {keys})"
    )


def _template(topology: Topology, text: str) -> str:
    text = text.replace("{{", '{{ "{{" }}')
    for path in parameters(topology):
        # Without the filter Go writes a million as 1e+06.
        filters = "" if isinstance(value(topology, path), str) else " | toJson"
        text = text.replace(_place(path), f"{{{{ {_reference(path)}{filters} }}}}")
    assert PLACE not in text
    return text


def _schema(topology: Topology, node: Any, path: Path = ()) -> dict[str, Any]:
    """The schema of values: the existing keys, with their types. A value that is not read is a mistake."""
    if isinstance(node, dict):
        inside = {key: _schema(topology, item, (*path, key)) for key, item in node.items()}
        if not path:
            inside["global"] = {"type": "object"}  # Helm's own
        return {"type": "object", "properties": inside, "additionalProperties": False}
    if isinstance(node, bool | str):
        return {"type": "boolean" if isinstance(node, bool) else "string"}
    found = {"type": "integer" if isinstance(node, int) else "number", "exclusiveMinimum": 0}
    if path[-1] == "replicas" and path[0] in SCALED:  # penstock.toml has no slots for more
        found["maximum"] = value(topology, (*path[:-1], "max_replicas"))
    return found


def render(topology: Topology) -> Mapping[str, str]:
    """The chart's files."""
    marked = _marked(topology)
    files: dict[str, str] = {}
    release = version("penstock")
    files["Chart.yaml"] = to_yaml(
        {
            "apiVersion": "v2",
            "name": topology.name,
            "description": f"The Penstock run {topology.name}, rendered from its topology",
            "type": "application",
            "version": release,
            "appVersion": release,
            "kubeVersion": ">=1.28.0-0",
        }
    )
    files["values.yaml"] = (
        "# What may be changed without rendering again: images, counts, sizes in GB, cores. What is not here follows from the topology.\n"
        + to_yaml(values(topology))
    )
    schema = _schema(topology, values(topology))
    files["values.schema.json"] = (
        json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, indent=1) + "\n"
    )
    for part in _parts(marked):
        text = _template(topology, documents(part.comment, part.objects))
        if part.name == OPTIONAL:
            text = f"{{{{- if .Values.monitoring }}}}\n{text}{{{{- end }}}}\n"
        files[f"templates/{part.name}.yaml"] = text
    if not topology.nats.external:
        files["nats.yaml"] = "# Values of the chart nats/nats.\n" + to_yaml(services.nats_values(topology))
    space = topology.kubernetes.namespace
    owned = [
        f"kubectl create namespace {space}",
        f"kubectl label namespace {space} app.kubernetes.io/managed-by=Helm",
        f"kubectl annotate namespace {space} meta.helm.sh/release-name={topology.name} meta.helm.sh/release-namespace={space}",
    ]
    files["README.md"] = (
        (
            kubernetes.notes(topology, f"helm upgrade --install {topology.name} . -n {space}")
            .replace("values/nats.yaml", "nats.yaml")
            .replace("kubectl apply -f 00-namespaces.yaml", "\n       ".join(owned))
        )
        + f"""
The chart has the namespace `{space}`, too: by that label and those annotations Helm takes the one that is there as its own, and gives it the labels
that the API server holds pods to. `helm uninstall {topology.name}` takes all of it away, the data pool and the weights in it included.
"""
    )
    return files
