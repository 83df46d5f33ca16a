"""One target, one file: a topology becomes readable files.

`render(topology, target)` is pure: a mapping from path to text, in a stable order. `write` puts it on a disk.
"""

from collections.abc import Callable, Mapping
from importlib import import_module

from orchestrator.contracts.quote import quoted
from orchestrator.deploy.cluster.topology import Topology

Files = Mapping[str, str]
"""Text by path below the directory that is written. Paths ending in .sh or .sbatch are made executable."""

TARGETS = ("kubernetes", "helm", "slurm", "systemd", "compose")


def render(topology: Topology, target: str) -> Files:
    """The files of one target. ValueError, one sentence, for an unknown target or a topology that it cannot run."""
    if target not in TARGETS:
        raise ValueError(f"unknown target {quoted(target)}; known: {', '.join(TARGETS)}")
    renderer: Callable[[Topology], Files] = import_module(f"{__name__}.{target}").render
    return renderer(topology)
