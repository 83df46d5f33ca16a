"""The building blocks of the targets' commands."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.deploy.cluster.placement import PlacedProcess
from orchestrator.deploy.cluster.render import Target, compose, kubernetes, systemd
from orchestrator.deploy.cluster.topology import Topology

DRAINED = (*WORKERS, ProcessRole.GATEWAY, ProcessRole.ROLLOUT_SERVER)
JOB = "${JOB}"


@dataclass(frozen=True, slots=True)
class CommandStep:
    """One command or, without `argv`, a change that happens by itself. `why`: one line."""

    why: str
    argv: tuple[str, ...] = ()

    @property
    def shell(self) -> str:
        """The command as a line for a shell; its one variable is the number of a job."""
        return " ".join(f'"{part}"' if JOB in part else shlex.quote(part) for part in self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPaths:
    """The locations. `topology`: the file; `out`: the rendered directory; `home`: the run, for `penstock drain`. `living`: current hosts of each
    process, in the order of removal; only Kubernetes uses it."""

    topology: str
    out: str
    home: str
    living: Mapping[str, Sequence[str]]

    def drain(self, kind: str, name: str, *how: str) -> CommandStep:
        effect = "its order ends" if "--undo" in how else "it takes no new work and finishes its current work"
        return CommandStep(
            f"{name}: {effect}", ("penstock", "drain", kind, name, "-c", self.home, *(how or ["--wait"]))
        )

    def render(self, target: str) -> CommandStep:
        argv = ("penstock", "cluster", "render", self.topology, "--target", target, "--out", self.out)
        return CommandStep("the files, with the new counts", argv)


def scripted(found: Iterable[CommandStep], refused: str = "") -> str:
    """A shell script of the steps. `refused`: why it must not run as it is; then it prints the reason and does nothing else."""
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
    """URLs of rollout servers, by process."""
    names = [f"rollout-server-{pool.name}-{n}" for pool in of.servers for n in range(pool.replicas)]
    if target in (Target.KUBERNETES, Target.HELM):
        urls = kubernetes.links(of).servers
    elif target == Target.COMPOSE:
        urls = compose.links(of).servers
    else:
        urls = systemd.site(of).links.servers
    return dict(zip(names, urls, strict=True))


def drains(
    site: CommandPaths, process: PlacedProcess, urls: Mapping[str, str], *how: str
) -> Iterator[CommandStep]:
    if process.role not in DRAINED or process.node:
        return
    if process.role == ProcessRole.ROLLOUT_SERVER:
        yield site.drain("server", urls[process.name], *how)
    else:
        yield site.drain(
            "gateway" if process.role == ProcessRole.GATEWAY else "runner",
            process.name,
            *how,
        )


def forgets(
    site: CommandPaths, gone: Iterable[PlacedProcess], urls: Mapping[str, str]
) -> Iterator[CommandStep]:
    """Remove the orders to rollout servers, which outlive them: a later server at the same address would accept no work."""
    for process in gone:
        if process.role == ProcessRole.ROLLOUT_SERVER:
            yield from drains(site, process, urls, "--undo")
