"""Every example, rendered once per process."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from orchestrator.deploy.cluster.reading import load
from orchestrator.deploy.cluster.render import render
from orchestrator.deploy.cluster.topology import Topology

CLUSTER = Path(__file__).resolve().parents[3] / "ops" / "cluster"
EXAMPLES = ("topology", "laptop", "node8", "nodes4", "nodes8", "nodes64")


@cache
def topology(name: str) -> Topology:
    return load(CLUSTER / ("topology.toml" if name == "topology" else f"examples/{name}.toml"))


@cache
def files(name: str, target: str) -> dict[str, str]:
    return dict(render(topology(name), target))


def parsed(texts: dict[str, str]) -> list[dict[str, Any]]:
    """The objects of top-level YAML files."""
    return [
        found
        for name, text in texts.items()
        if name.endswith(".yaml") and "/" not in name
        for found in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if found
    ]


@cache
def _objects(name: str) -> list[dict[str, Any]]:
    return parsed(files(name, "kubernetes"))


def objects(name: str) -> list[dict[str, Any]]:
    """The plain render, free for changes."""
    return copy.deepcopy(_objects(name))
