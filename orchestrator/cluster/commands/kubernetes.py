"""Kubernetes, by plain objects or a chart: what it does by itself, and what must be drained before."""

import json
from collections.abc import Iterator, Sequence

from orchestrator.cluster.commands.step import Site, Step, forgets, urls_of
from orchestrator.cluster.edit import spelt
from orchestrator.cluster.placement import Process, kinds
from orchestrator.cluster.render.objects import named
from orchestrator.cluster.scale import Change
from orchestrator.cluster.topology import Topology
from orchestrator.contracts.errors import ConfigurationError

LIKELY = "controller.kubernetes.io/pod-deletion-cost=-1000"  # of a Deployment's pods that goes first which costs least


def runner_pools(change: Change) -> list[str]:
    """Names of the Deployments whose pods become fewer by this change, as their processes call themselves."""
    fewer = {each.key for each in change.goes if each.role in ("runner", "verifier")}
    return [
        process.name
        for (role, _), process in kinds(change.before).items()
        if role in ("runner", "verifier") and process.key in fewer and not _scaled(change.before, process)
    ]


def _refuse_switch(change: Change) -> None:
    """ConfigurationError where a pool would begin or cease to be KEDA's by plain objects: `kubectl apply` takes no ScaledObject away, so it would
    go on to scale; and where there is a new one, it sets a Deployment whose count is gone from the file to one pod."""
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


def on_kubernetes(change: Change, site: Site, target: str, changed: Sequence[str]) -> Iterator[Step]:
    """Sets lose their highest numbers. Of a Deployment those pods go that were drained, because they are marked as the cheapest to lose."""
    if target == "kubernetes":
        _refuse_switch(change)
    before, after = change.before, change.after
    space, urls = after.kubernetes.namespace, urls_of(before, target)
    kubectl = ("kubectl", "-n", space)
    gateways = named(after, "gateway")
    for process in change.goes:
        if process.role == "gateway":
            yield site.drain("gateway", f"gateway@{gateways}-{process.number}")
        elif process.role == "rollout-server" and not process.node:
            yield site.drain("server", urls[process.name])
    for name in runner_pools(change):
        hosts = site.living.get(name, ())
        for host in hosts[: max(0, len(hosts) - _replicas(after, name))]:
            yield site.drain("runner", f"{name}@{host}")
            yield Step(
                f"and {host} is the pod that goes", (*kubectl, "annotate", "pod", host, LIKELY, "--overwrite")
            )
    reads = "gateway" in change.readers
    stay = min(before.gateways.replicas, after.gateways.replicas)
    if reads:
        yield _partition(
            kubectl, gateways, stay, "gateways keep their settings until each of them is drained"
        )
    if target == "helm":
        applied: tuple[str, ...] = ("helm", "upgrade", "--install", after.name, site.out, "-n", space)
    else:
        files = [name for name in changed if name.endswith(".yaml") and "/" not in name]
        applied = (*kubectl, "apply", *(part for name in files for part in ("-f", f"{site.out}/{name}")))
    yield Step("the cluster does the rest", applied)
    if any(_scaled(after, each) for each in kinds(after).values() if each.key in _keys(change)):
        yield Step(
            "KEDA ends and begins runners by the work that waits and that they hold: what one of them held goes on elsewhere from its recorded steps"
        )
    if "runner" in change.readers:
        yield Step(
            "runners are rolled, for the new gateways: what they held goes on elsewhere from its recorded steps"
        )
    if reads:
        for number in reversed(range(stay)):
            yield site.drain("gateway", f"gateway@{gateways}-{number}")
            yield _partition(
                kubectl, gateways, number, f"{gateways}-{number} begins anew, with the new settings"
            )
            yield _waits(kubectl, f"statefulset/{gateways}")
    for workload in _workloads(change):
        yield _waits(kubectl, workload)
    yield from forgets(site, change.goes, urls)


def _partition(kubectl: Sequence[str], name: str, number: int, why: str) -> Step:
    """Pods of the set with a smaller number stay as they are."""
    strategy = {"spec": {"updateStrategy": {"rollingUpdate": {"partition": number}}}}
    return Step(why, (*kubectl, "patch", "statefulset", name, "--patch", json.dumps(strategy)))


def _waits(kubectl: Sequence[str], workload: str) -> Step:
    return Step(
        f"until {workload} is as it should be", (*kubectl, "rollout", "status", workload, "--timeout=30m")
    )


def _keys(change: Change) -> set[str]:
    """The pools whose counts change, as processes know them: runners[0]."""
    return {spelt(count.key).rpartition(".")[0] for count in change.counts}


def _scaled(of: Topology, process: Process) -> bool:
    """Whether KEDA decides how many of a pool there are."""
    pools = {"runner": of.runners, "verifier": of.verifiers}.get(process.role, ())
    return of.kubernetes.autoscaling and any(each.max_replicas for each in pools if each.name == process.pool)


def _replicas(of: Topology, name: str) -> int:
    """Of the Deployment whose processes are called `name`."""
    process = next(each for each in kinds(of).values() if each.name == name)
    pools = of.runners if process.role == "runner" else of.verifiers
    return next(pool.replicas for pool in pools if pool.name == process.pool)


def _workloads(change: Change) -> Iterator[str]:
    """What `kubectl rollout status` can be asked of, where counts change or settings are read anew."""
    of, keys = change.after, _keys(change)
    for process in kinds(of).values():
        if process.key not in keys and process.role not in change.readers:
            continue
        if process.role in ("runner", "verifier", "orchestrator"):
            if not _scaled(of, process):
                yield f"deployment/{named(of, process.name)}"
        elif process.role == "rollout-server":
            pool = next(each for each in of.servers if each.name == process.pool)
            if pool.nodes == 1:
                yield f"statefulset/{named(of, f'rollout-server-{pool.name}')}"
        elif process.role == "gateway" and "gateway" not in change.readers:  # else it was waited for
            yield f"statefulset/{named(of, 'gateway')}"
