"""One target, one file: a topology becomes readable files.

`render(topology, target)` is pure: a mapping from path to text, in a stable order. `write` puts it on a disk.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib import import_module

from orchestrator.contracts.quote import quoted
from orchestrator.deploy.cluster.topology import Topology

Files = Mapping[str, str]
"""Text by path below the directory that is written. Paths ending in .sh or .sbatch are made executable."""


class Target(StrEnum):
    """The program that starts the processes. Each member names the module with its `render`."""

    KUBERNETES = "kubernetes"
    HELM = "helm"
    SLURM = "slurm"
    SYSTEMD = "systemd"
    COMPOSE = "compose"


def render(topology: Topology, target: str) -> Files:
    """The files of one target. ValueError, one sentence, for an unknown target or a topology that it cannot run."""
    if target not in list(Target):
        raise ValueError(f"unknown target {quoted(target)}; known: {', '.join(Target)}")
    renderer: Callable[[Topology], Files] = import_module(f"{__name__}.{target}").render
    return renderer(topology)
