"""Validates objects against the schemas of Kubernetes, strictly and offline: an unknown field, a wrong type or a missing one is a sentence.

The schemas are those of the package kubernetes-validate; kinds of other operators are checked by `crds`.
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

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster import crds
from orchestrator.deploy.cluster.objects import Object, called

VERSIONS = ("1.31.0", "1.34.0", "1.37.0")
POD_TEMPLATE = ("v1", "PodTemplate")


def unfit(objects: Sequence[Object], versions: Sequence[str] = VERSIONS) -> list[str]:
    """Everything that the API servers of these versions would refuse, each as a sentence; none if they accept all."""
    versions_of: dict[str, list[str]] = {}
    for found in objects:
        for version in versions:
            for problem in _problems(found, version):
                versions_of.setdefault(f"{called(found)}: {problem}", []).append(version)
    return [f"{text} (Kubernetes {', '.join(affected)})" for text, affected in versions_of.items()]


def _problems(found: Object, version: str) -> Iterator[str]:
    api, kind = str(found.get("apiVersion", "")), str(found.get("kind", ""))
    restated = _restated(api, kind)
    checker = restated or _known(version, api, kind)
    if checker is None:
        yield f"{api or 'an empty apiVersion'} has no kind {kind or 'of that name'}"
        return
    if problem := best_match(checker.iter_errors(found)):
        yield _describe(problem)
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
                    yield f"{name}: {_describe(problem)}"


def _describe(problem: Any) -> str:
    path = ".".join(str(part) for part in problem.absolute_path)
    return f"{path or 'the object'}: {problem.message[:300]}"


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
        raise ConfigurationError(f"no schemas of Kubernetes {version}; known: {', '.join(VERSIONS)}")
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
