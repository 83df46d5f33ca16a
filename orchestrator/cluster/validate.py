"""Holds objects to the schemas of Kubernetes, strictly and offline: an unknown field, a wrong type or a missing one is a sentence.

The schemas are those that the package kubernetes-validate carries; kinds of other people's operators are held to `crds`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

from orchestrator.cluster import crds
from orchestrator.cluster.objects import Object, called
from orchestrator.contracts.errors import ConfigurationError

VERSIONS = ("1.31.0", "1.34.0", "1.37.0")
POD_TEMPLATE = ("v1", "PodTemplate")


def unfit(objects: Sequence[Object], versions: Sequence[str] = VERSIONS) -> list[str]:
    """What the API servers of these versions would refuse, each as a sentence; none if they take everything."""
    said: dict[str, list[str]] = {}
    for found in objects:
        for version in versions:
            for problem in _problems(found, version):
                said.setdefault(f"{called(found)}: {problem}", []).append(version)
    return [f"{text} (Kubernetes {', '.join(some)})" for text, some in said.items()]


def _problems(found: Object, version: str) -> Iterator[str]:
    api, kind = str(found.get("apiVersion", "")), str(found.get("kind", ""))
    restated = _restated(api, kind)
    checker = restated or _known(version, api, kind)
    if checker is None:
        yield f"there is no kind {kind or 'at all'} in {api or 'an apiVersion'}"
        return
    if problem := best_match(checker.iter_errors(found)):
        yield _said(problem)
    if restated is not None and kind == "LeaderWorkerSet":
        group = found.get("spec", {}).get("leaderWorkerTemplate", {})
        for name in ("leaderTemplate", "workerTemplate"):
            if name in group:
                pod = {
                    "apiVersion": "v1",
                    "kind": "PodTemplate",
                    "metadata": {"name": "x"},
                    "template": group[name],
                }
                own = _known(version, *POD_TEMPLATE)
                assert own is not None
                if problem := best_match(own.iter_errors(pod)):
                    yield f"{name}: {_said(problem)}"


def _said(problem: Any) -> str:
    place = ".".join(str(part) for part in problem.absolute_path)
    return f"{place or 'the object'}: {problem.message[:300]}"


@cache
def _restated(api: str, kind: str) -> Draft202012Validator | None:
    found = crds.schema(api, kind)
    return None if found is None else Draft202012Validator(found)


def _read(version: str, name: str) -> Any:
    try:
        root = resources.files("kubernetes_validate")
    except ModuleNotFoundError:
        raise ConfigurationError(
            "the schemas of Kubernetes are not installed: pip install 'penstock[cluster]'"
        ) from None
    file = root / "kubernetes-json-schema" / f"v{version}-local-strict" / name
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


@cache
def _definitions(version: str) -> Registry[Any]:
    found = _read(version, "_definitions.json")
    if found is None:
        raise ConfigurationError(
            f"there are no schemas of Kubernetes {version}: known are {', '.join(VERSIONS)}"
        )
    resource = Resource.from_contents(found)
    registry: Registry[Any] = Registry()
    registry = registry.with_resource(str(resource.id()), resource)
    return registry


@cache
def _known(version: str, api: str, kind: str) -> Draft202012Validator | None:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)
    registry = _definitions(version)
    found = _read(version, f"{kind.lower()}-{group}.json")
    return None if found is None else Draft202012Validator(found, registry=registry)
