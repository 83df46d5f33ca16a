"""What cannot be of a topology: sentences that name the key and show the arithmetic. Pure; nothing is started or written."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.cluster.placement import ANYWHERE, placed
from orchestrator.cluster.topology import Placed, Topology, hosts_of


def problems(topology: Topology) -> list[str]:
    """Every contradiction, none if it holds together."""
    return [
        *_names(topology),
        *_hosts(topology),
        *_parallelism(topology),
        *_sampling(topology),
        *_window(topology),
        *_shared(topology),
        *_login(topology),
        *_namespaces(topology),
        *(_places(topology) if not list(_hosts(topology)) else ()),
    ]


def _names(topology: Topology) -> Iterator[str]:
    for key, pools in (
        ("runners", topology.runners),
        ("verifiers", topology.verifiers),
        ("servers", topology.servers),
    ):
        names = [pool.name for pool in pools]
        for name in sorted({name for name in names if names.count(name) > 1}):
            where = " and ".join(f"{key}[{at}]" for at, other in enumerate(names) if other == name)
            yield f"{where} are both called {name!r}: give each pool a name of its own"


def _hosts(topology: Topology) -> Iterator[str]:
    known: set[str] = set()
    for index, host in enumerate(topology.hosts):
        try:
            names = hosts_of(host.name)
        except ValueError as error:
            yield f"hosts[{index}].name: {error}"
            return
        for name in names:
            if name in known:
                yield f"hosts[{index}].name: {name} is named twice"
            known.add(name)
    roles: dict[str, Placed] = {
        "nats": topology.nats,
        "postgres": topology.postgres,
        "orchestrators": topology.orchestrators,
        "gateways": topology.gateways,
        "trainer": topology.trainer,
        "web": topology.web,
        **{f"runners[{at}]": pool for at, pool in enumerate(topology.runners)},
        **{f"verifiers[{at}]": pool for at, pool in enumerate(topology.verifiers)},
        **{f"servers[{at}]": pool for at, pool in enumerate(topology.servers)},
    }
    for key, role in roles.items():
        for pattern in role.hosts:
            try:
                missing = [name for name in hosts_of(pattern) if name not in known]
            except ValueError as error:
                yield f"{key}.hosts: {error}"
                continue
            if missing:
                listed = ", ".join(host.name for host in topology.hosts) or "none"
                yield f"{key}.hosts: {missing[0]} is none of the hosts (known: {listed})"


def _parallelism(topology: Topology) -> Iterator[str]:
    trainer = topology.trainer
    have = trainer.nodes * trainer.gpus_per_node
    if trainer.gpus_per_node and trainer.ranks > have:
        yield (
            f"trainer.ranks = {trainer.ranks} needs {trainer.ranks} GPUs, but trainer.nodes × gpus_per_node = "
            f"{trainer.nodes} × {trainer.gpus_per_node} = {have}"
        )
    elif trainer.gpus_per_node and trainer.ranks < have:
        yield (
            f"trainer.ranks = {trainer.ranks} leaves {have - trainer.ranks} GPUs idle: trainer.nodes × gpus_per_node = "
            f"{trainer.nodes} × {trainer.gpus_per_node} = {have}"
        )
    elif trainer.ranks % trainer.nodes:
        yield f"trainer.ranks = {trainer.ranks} cannot be the same number on each of trainer.nodes = {trainer.nodes}"
    for index, pool in enumerate(topology.servers):
        key = f"servers[{index}]"
        if pool.engine == "embedded":
            if pool.nodes > 1 or pool.tp * pool.dp * pool.pp > 1 or pool.gpus_per_node:
                yield (
                    f"{key}: the embedded engine is one process on CPUs, not nodes × tp × dp × pp = {pool.nodes} × {pool.tp} × {pool.dp} × "
                    f'{pool.pp} with gpus_per_node = {pool.gpus_per_node}: set engine = "sglang", or gpus_per_node = 0 and the others to 1'
                )
            continue
        given = pool.nodes * pool.gpus_per_node
        if pool.gpus != given:
            verb = "needs" if pool.gpus > given else "uses only"
            yield (
                f"{key}: tp × pp × dp = {pool.tp} × {pool.pp} × {pool.dp} {verb} {pool.gpus} GPUs, but nodes × gpus_per_node = "
                f"{pool.nodes} × {pool.gpus_per_node} = {given}"
            )
        elif pool.tp % pool.nodes and pool.pp % pool.nodes:
            yield f"{key}: neither tp = {pool.tp} nor pp = {pool.pp} can be divided by nodes = {pool.nodes}"
    reserved, count = topology.penstock.servers.evaluation, sum(pool.replicas for pool in topology.servers)
    if reserved >= count:
        yield f"config.servers.evaluation = {reserved} of {count} rollout servers (the sum of servers.replicas) leaves none for training"


def _sampling(topology: Topology) -> Iterator[str]:
    if wrong := topology.penstock.sampling.untrainable:  # or the trainer says so, on its GPUs
        yield f"config.{wrong}"


@dataclass(frozen=True, slots=True)
class Bridge:
    """What may be in flight, N + W groups, against what passes the slowest group while it runs: `scheduling.admission.window_reach` below 1
    idles the trainer. `slots`: of all runners, as many as there may be of them."""

    slots: int
    verify_slots: int
    group_size: int
    capacity: int
    window: int
    ratio: float  # the slowest group's time, in means

    @property
    def groups(self) -> float:
        """That the slots hold."""
        return self.slots / self.group_size

    @property
    def reach(self) -> int:
        return self.capacity + self.window

    @property
    def needed(self) -> float:
        return self.groups * self.ratio


def bridge(topology: Topology) -> Bridge:
    """That of a topology."""
    queue = topology.penstock.queue
    slots, verify_slots = (
        sum(pool.most * pool.slots for pool in pools) for pools in (topology.runners, topology.verifiers)
    )
    return Bridge(
        slots, verify_slots, queue.group_size, queue.capacity, queue.window, topology.load.longest_over_mean
    )


def _window(topology: Topology) -> Iterator[str]:
    has = bridge(topology)
    if has.slots < has.group_size:
        yield (
            f"runners: replicas × slots = {has.slots}, but config.queue.group_size = {has.group_size} rollouts of a group run together: "
            "raise runners.slots"
        )
        return
    if has.reach < has.needed:
        least = int(-(-has.needed // (1 + topology.penstock.queue.window_fraction))) + 1
        yield (
            f"config.queue: N + W = capacity + window = {has.capacity} + {has.window} = {has.reach} groups idle the trainer: "
            f"runners hold {has.slots} slots ÷ group_size {has.group_size} = {has.groups:g} groups, and the slowest takes "
            f"load.longest_over_mean = {has.ratio:g} times the mean, so {has.groups:g} × {has.ratio:g} = {has.needed:g} are passed meanwhile: "
            f"set config.queue.capacity to {least}, or take fewer slots"
        )


def _shared(topology: Topology) -> Iterator[str]:
    shared = topology.shared
    users = ("gateway", "rollout-server", "trainer")
    hosts = (
        {process.host for process in placed(topology) if process.role in users}
        if not list(_hosts(topology))
        else set()
    )
    if not shared.path:
        if len(hosts) > 1:
            yield (
                f"shared.path is empty, but gateways, rollout servers and trainer run on {len(hosts)} hosts ({', '.join(sorted(hosts)[:4])}"
                f"{', …' if len(hosts) > 4 else ''}): name the directory that all of them see at the same path"
            )
        else:
            yield "shared.path is empty: name the directory for the weights of all versions"
    elif not PurePosixPath(shared.path).is_absolute() or ".." in PurePosixPath(shared.path).parts:
        yield f"shared.path = {shared.path!r} must be absolute: policy versions are known by it on every host"
    if not shared.model:
        yield "shared.model is empty: name the directory of the first policy"


def _login(topology: Topology) -> Iterator[str]:
    of = topology.secrets
    if of.nats_login is None:
        return
    if topology.nats.external:
        yield "secrets.nats_login is for servers of the run's own, but nats.external says that they are there already: take it out"
    elif of.nats_url is None:
        yield "secrets.nats_login lets NATS ask for a login, but no process would have one: name in secrets.nats_url the URL with it, too"


def _namespaces(topology: Topology) -> Iterator[str]:
    of = topology.kubernetes
    if of.namespace == of.sandbox_namespace:
        yield (
            f"kubernetes.sandbox_namespace = {of.sandbox_namespace!r} is kubernetes.namespace too: whoever makes sandboxes may make and end pods "
            "in theirs, which must not be the run's own"
        )


def _places(topology: Topology) -> Iterator[str]:
    """Ports, GPUs, cores and memory of each host."""
    processes, machines = placed(topology), topology.machines
    owners: dict[tuple[str, int], list[str]] = defaultdict(list)
    for process in processes:
        if process.host == ANYWHERE:
            continue  # containers have an address each
        for what, port in process.ports.items():
            owners[process.host, port].append(f"{process.name} ({process.key}, {what})")
    for (host, port), claims in owners.items():
        if len(claims) > 1:
            yield f"port {port} of host {host} has two owners: {' and '.join(claims[:2])}: change the port of one of them"
        if port > 65535:
            yield f"{claims[0]} would take port {port} of host {host}: begin with a smaller one"
    for name, machine in machines.items():
        takers: dict[str, int] = defaultdict(int)
        for process in processes:
            if process.host == name:
                takers[process.key] += len(process.gpus)
        wanted = sum(takers.values())
        if wanted > machine.gpus:
            parts = " + ".join(f"{count} ({key})" for key, count in takers.items() if count)
            yield f"host {name} has gpus = {machine.gpus}, but its processes need {parts} = {wanted}"
    seen: set[tuple[str, str, int]] = set()
    for process in processes:
        if process.role in ("rollout-server", "trainer"):
            place = (process.name, process.host, 0)
            if process.host != ANYWHERE and place in seen:
                yield f"{process.key}: two nodes of {process.name} would be host {process.host}: give it more hosts, or fewer nodes"
            seen.add(place)
    nats = [process.host for process in processes if process.role == "nats"]
    if len(set(nats)) < len(nats) and ANYWHERE not in nats:
        yield (
            f"nats.nodes = {len(nats)}, but they are placed on {len(set(nats))} hosts ({', '.join(sorted(set(nats)))}): "
            "a host that is lost must not take two of them"
        )
