"""What the targets' commands are made of."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.cluster.placement import Process
from orchestrator.cluster.render import compose, kubernetes, systemd
from orchestrator.cluster.topology import Topology

DRAINED = ("runner", "verifier", "gateway", "rollout-server")
JOB = "${JOB}"


@dataclass(frozen=True, slots=True)
class Step:
    """One command, or, without `argv`, what happens by itself. `why`: one line."""

    why: str
    argv: tuple[str, ...] = ()

    @property
    def shell(self) -> str:
        """The command as a line for a shell; its one variable is the number of a job."""
        return " ".join(f'"{part}"' if JOB in part else shlex.quote(part) for part in self.argv)


@dataclass(frozen=True, slots=True)
class Site:
    """Where the files are: `topology`: the file; `out`: the rendered directory; `home`: the run, for `penstock drain`. `living`: hosts of each
    process that is there now, those first that should go first; only Kubernetes asks for it."""

    topology: str
    out: str
    home: str
    living: Mapping[str, Sequence[str]]

    def drain(self, kind: str, name: str, *how: str) -> Step:
        what = "its order ends" if "--undo" in how else "it finishes what it has and takes nothing new"
        return Step(
            f"{name}: {what}", ("penstock", "drain", kind, name, "-c", self.home, *(how or ["--wait"]))
        )

    def render(self, target: str) -> Step:
        argv = ("penstock", "cluster", "render", self.topology, "--target", target, "--out", self.out)
        return Step("the files, with the new counts", argv)


def scripted(found: Iterable[Step], refused: str = "") -> str:
    """As a shell script. `refused`: why it is not to be run as it is; then it says so, and does nothing."""
    lines = ["set -eu"]
    if refused:
        lines.append(f"echo {shlex.quote(refused)} >&2; exit 1")
    found = list(found)
    if any(JOB in part for step in found for part in step.argv):
        lines.append('JOB="${JOB:?the number of the job that runs}"')
    for step in found:
        lines += [f"# {step.why}", *([step.shell] if step.argv else [])]
    return "\n".join(lines) + "\n"


def urls_of(of: Topology, target: str) -> dict[str, str]:
    """Of rollout servers, by process."""
    names = [f"rollout-server-{pool.name}-{n}" for pool in of.servers for n in range(pool.replicas)]
    if target in ("kubernetes", "helm"):
        urls = kubernetes.links(of).servers
    elif target == "compose":
        urls = compose.links(of).servers
    else:
        urls = systemd.site(of).links.servers
    return dict(zip(names, urls, strict=True))


def drains(site: Site, process: Process, urls: Mapping[str, str], *how: str) -> Iterator[Step]:
    if process.role not in DRAINED or process.node:
        return
    if process.role == "rollout-server":
        yield site.drain("server", urls[process.name], *how)
    else:
        yield site.drain("gateway" if process.role == "gateway" else "runner", process.name, *how)


def forgets(site: Site, gone: Iterable[Process], urls: Mapping[str, str]) -> Iterator[Step]:
    """The orders to rollout servers outlive them: whoever comes later at the same address would take nothing."""
    for process in gone:
        if process.role == "rollout-server":
            yield from drains(site, process, urls, "--undo")
