"""The chart, rendered by Helm's own code, is the plain render object for object, with its values and with changed ones."""

import shlex
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from orchestrator.deploy.cluster.render import helm
from orchestrator.deploy.cluster.render import kubernetes as plain
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.deploy.cluster.write import write
from tests.unit.cluster.rendered import EXAMPLES, files, objects, topology


@cache
def chart(name: str, directory: Path) -> Path:
    write(files(name, "helm"), directory / name)
    return directory / name


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("charts")


def by_helm(directory: Path, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    with helm_python.Chart.load(directory) as loaded:
        texts = loaded.render(values, name="release", namespace="default")
    return [
        found
        for _, text in sorted(texts.items())
        for found in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if found
    ]


def same(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    """Compares object for object; a difference is named, not printed whole."""
    assert len(one) == len(two)
    assert [f"{a['kind']} {a['metadata']['name']}" for a, b in zip(one, two, strict=True) if a != b] == []


def other(of: Topology, path: tuple[str, ...], number: int) -> Any:
    """A value that no other place has, of the same kind: large, or with a fraction. Runners stay within the values of penstock.toml."""
    now = helm.value(of, path)
    if path == ("orchestrators", "replicas"):
        return 5
    if path[0] in ("runners", "verifiers") and path[-1] == "replicas":
        return helm.value(of, (*path[:-1], "max_replicas"))
    if isinstance(now, str):
        return f"registry.example.org/other:2.0.{number}"
    return 1_000_000 + number if isinstance(now, int) else number + 0.5


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_chart_with_its_own_values_is_the_plain_render(name: str, charts: Path) -> None:
    same(by_helm(chart(name, charts)), objects(name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_values_file_that_changes_everything_is_what_the_changed_topology_renders(
    name: str, charts: Path
) -> None:
    of = topology(name)
    values: dict[str, Any] = {}
    for number, path in enumerate(helm.parameters(of), 1):
        value = other(of, path, number)
        node = values
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
        of = helm.with_value(of, path, value)
    same(by_helm(chart(name, charts), values), [found for part in plain.parts(of) for found in part.objects])


def test_without_monitoring_its_objects_are_not_there(charts: Path) -> None:
    kinds = {found["kind"] for found in by_helm(chart("node8", charts), {"monitoring": False})}
    assert not kinds & {"PodMonitor", "PrometheusRule"} and "StatefulSet" in kinds


def test_the_chart_of_a_topology_without_monitoring_does_not_let_prometheus_in(tmp_path: Path) -> None:
    of = topology("nodes4")
    alone = of.model_copy(update={"kubernetes": of.kubernetes.model_copy(update={"monitoring": False})})
    write(helm.render(alone), tmp_path / "chart")
    found = by_helm(tmp_path / "chart")
    same(found, [each for part in plain.parts(alone) for each in part.objects])
    assert "prometheus" not in str([each for each in found if each["kind"] == "NetworkPolicy"])


def test_a_value_that_nothing_reads_is_refused(charts: Path) -> None:
    with helm_python.Chart.load(chart("node8", charts)) as loaded, pytest.raises(helm_python.HelmValuesError):
        loaded.validate_schema({"trainer": {"rankz": 3}})


def test_more_runners_than_the_settings_have_slots_for_are_refused(charts: Path) -> None:
    with (
        helm_python.Chart.load(chart("nodes4", charts)) as loaded,
        pytest.raises(helm_python.HelmValuesError),
    ):
        loaded.validate_schema({"runners": {"default": {"replicas": 5}}})


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_lint_finds_no_fault(name: str, charts: Path) -> None:
    report = helm_python.lint(chart(name, charts), strict=True, kube_version="v1.34.0")
    assert report["errors"] == [] and all(message["severity"] < 2 for message in report["messages"]), report


def commands_of(readme: str) -> list[list[str]]:
    """The command lines of a README."""
    return [shlex.split(line) for line in readme.splitlines() if line.startswith(7 * " ")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_takes_what_the_readme_makes_before_it_as_its_own(name: str, charts: Path) -> None:
    lines = commands_of(files(name, "helm")["README.md"])
    there: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    release: tuple[str, str] | None = None
    for line in lines:
        if line[:3] == ["kubectl", "create", "namespace"]:
            there["Namespace", line[3]] = {"labels": {}, "annotations": {}}
        elif line[:3] == ["kubectl", "label", "namespace"]:
            there["Namespace", line[3]]["labels"] |= dict(part.split("=") for part in line[4:])
        elif line[:3] == ["kubectl", "annotate", "namespace"]:
            there["Namespace", line[3]]["annotations"] |= dict(part.split("=") for part in line[4:])
        elif line[0] == "kubectl" and "secret" in line:
            there["Secret", line[line.index("generic") + 1]] = {"labels": {}, "annotations": {}}
        elif line[:3] == ["helm", "upgrade", "--install"]:
            release = (line[3], line[line.index("-n") + 1])
        else:
            assert line[0] == "helm" and line[3] == "nats/nats", line
    assert release is not None
    held = 0
    for found in by_helm(chart(name, charts)):
        before = there.get((found["kind"], found["metadata"]["name"]))
        if before is None:
            continue
        held += 1  # Helm's requirements for an existing object that belongs to no release: pkg/action/validate.go, checkOwnership
        assert before["labels"].get("app.kubernetes.io/managed-by") == "Helm"
        assert before["annotations"].get("meta.helm.sh/release-name") == release[0]
        assert before["annotations"].get("meta.helm.sh/release-namespace") == release[1]
    assert held == 1
