"""Kubernetes, by plain objects or a chart: the changes that it makes by itself, and the processes that must be drained before."""

import json
from collections.abc import Iterator, Sequence

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.deploy.cluster.commands.step import (
    CommandPaths,
    CommandStep,
    forgets,
    urls_of,
)
from orchestrator.deploy.cluster.edit import spelt
from orchestrator.deploy.cluster.placement import PlacedProcess, kinds
from orchestrator.deploy.cluster.render import Target
from orchestrator.deploy.cluster.render.objects import named
from orchestrator.deploy.cluster.scale import Change
from orchestrator.deploy.cluster.topology import Topology

LIKELY = "controller.kubernetes.io/pod-deletion-cost=-1000"  # a Deployment removes the pod with the lowest cost first


def runner_pools(change: Change) -> list[str]:
    """Names of the Deployments that lose pods by this change, as their processes use them."""
    fewer = {each.key for each in change.goes if each.role in WORKERS}
    return [
        process.name
        for (role, _), process in kinds(change.before).items()
        if role in WORKERS and process.key in fewer and not _scaled(change.before, process)
    ]


def _refuse_switch(change: Change) -> None:
    """ConfigurationError if a pool would switch to or from KEDA with plain objects. `kubectl apply` does not delete a ScaledObject, so it would
    continue to scale. With a new one, it sets a Deployment without a count in the file to one pod."""
    for count in change.counts:
        if (
            change.after.kubernetes.autoscaling
            and count.key[2] == "max_replicas"
            and not (count.before and count.after)
        ):
            raise ConfigurationError(
                f"{count.sentence} makes KEDA {'begin' if count.after else 'cease'} to scale them, which `kubectl apply` does not do in order: "
                "use --target helm, or write it into the file and apply it by hand"
            )


def on_kubernetes(
    change: Change, site: CommandPaths, target: str, changed: Sequence[str]
) -> Iterator[CommandStep]:
    """Sets lose their highest numbers. A Deployment loses the pods that were drained, because they are marked as the cheapest."""
    if target == Target.KUBERNETES:
        _refuse_switch(change)
    old_topology, new_topology = change.before, change.after
    namespace, urls = new_topology.kubernetes.namespace, urls_of(old_topology, target)
    kubectl = ("kubectl", "-n", namespace)
    gateways = named(new_topology, ProcessRole.GATEWAY)
    for process in change.goes:
        if process.role == ProcessRole.GATEWAY:
            yield site.drain("gateway", f"gateway@{gateways}-{process.number}")
        elif process.role == ProcessRole.ROLLOUT_SERVER and not process.node:
            yield site.drain("server", urls[process.name])
    for name in runner_pools(change):
        hosts = site.living.get(name, ())
        for host in hosts[: max(0, len(hosts) - _replicas(new_topology, name))]:
            yield site.drain("runner", f"{name}@{host}")
            yield CommandStep(
                f"and {host} is the pod that goes", (*kubectl, "annotate", "pod", host, LIKELY, "--overwrite")
            )
    reads = ProcessRole.GATEWAY in change.readers
    remaining = min(old_topology.gateways.replicas, new_topology.gateways.replicas)
    if reads:
        yield _partition(
            kubectl, gateways, remaining, "gateways keep their settings until each of them is drained"
        )
    if target == Target.HELM:
        applied: tuple[str, ...] = (
            "helm",
            "upgrade",
            "--install",
            new_topology.name,
            site.out,
            "-n",
            namespace,
        )
    else:
        files = [name for name in changed if name.endswith(".yaml") and "/" not in name]
        applied = (*kubectl, "apply", *(part for name in files for part in ("-f", f"{site.out}/{name}")))
    yield CommandStep("the cluster does the rest", applied)
    if any(_scaled(new_topology, each) for each in kinds(new_topology).values() if each.key in _keys(change)):
        yield CommandStep(
            "KEDA ends and begins runners by the work that waits and that they hold: what one of them held goes on elsewhere from its recorded steps"
        )
    if ProcessRole.RUNNER in change.readers:
        yield CommandStep(
            "runners are rolled, for the new gateways: what they held goes on elsewhere from its recorded steps"
        )
    if reads:
        for number in reversed(range(remaining)):
            yield site.drain("gateway", f"gateway@{gateways}-{number}")
            yield _partition(kubectl, gateways, number, f"{gateways}-{number} restarts with the new settings")
            yield _waits(kubectl, f"statefulset/{gateways}")
    for workload in _workloads(change):
        yield _waits(kubectl, workload)
    yield from forgets(site, change.goes, urls)


def _partition(kubectl: Sequence[str], name: str, number: int, why: str) -> CommandStep:
    """Pods of the set with a smaller number stay as they are."""
    strategy = {"spec": {"updateStrategy": {"rollingUpdate": {"partition": number}}}}
    return CommandStep(why, (*kubectl, "patch", "statefulset", name, "--patch", json.dumps(strategy)))


def _waits(kubectl: Sequence[str], workload: str) -> CommandStep:
    return CommandStep(
        f"until {workload} is as it should be", (*kubectl, "rollout", "status", workload, "--timeout=30m")
    )


def _keys(change: Change) -> set[str]:
    """The pools whose counts change, by the keys that processes use: runners[0]."""
    return {spelt(count.key).rpartition(".")[0] for count in change.counts}


def _scaled(of: Topology, process: PlacedProcess) -> bool:
    """Whether KEDA decides the number of processes in a pool."""
    pools = {ProcessRole.RUNNER: of.runners, ProcessRole.VERIFIER: of.verifiers}.get(process.role, ())
    return of.kubernetes.autoscaling and any(each.max_replicas for each in pools if each.name == process.pool)


def _replicas(of: Topology, name: str) -> int:
    """The replicas of the Deployment whose processes are called `name`."""
    process = next(each for each in kinds(of).values() if each.name == name)
    pools = of.runners if process.role == ProcessRole.RUNNER else of.verifiers
    return next(pool.replicas for pool in pools if pool.name == process.pool)


def _workloads(change: Change) -> Iterator[str]:
    """The workloads to pass to `kubectl rollout status`: those with changed counts, and those that reread settings."""
    of, keys = change.after, _keys(change)
    for process in kinds(of).values():
        if process.key not in keys and process.role not in change.readers:
            continue
        if process.role in (*WORKERS, ProcessRole.ORCHESTRATOR):
            if not _scaled(of, process):
                yield f"deployment/{named(of, process.name)}"
        elif process.role == ProcessRole.ROLLOUT_SERVER:
            pool = next(each for each in of.servers if each.name == process.pool)
            if pool.nodes == 1:
                yield f"statefulset/{named(of, f'rollout-server-{pool.name}')}"
        elif process.role == ProcessRole.GATEWAY and process.role not in change.readers:
            # One of the readers was awaited already.
            yield f"statefulset/{named(of, ProcessRole.GATEWAY)}"
