"""Contradictions of a topology: sentences that name the key and show the arithmetic. Pure; nothing is started or written."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.queue_window import FIFO, GREEDY
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.cluster.placement import ANYWHERE, placed
from orchestrator.deploy.cluster.topology import HostedSection, ServerEngine, Topology, hosts_of


def problems(topology: Topology) -> list[str]:
    """Every contradiction; empty if the topology is consistent."""
    return [
        *_names(topology),
        *_hosts(topology),
        *_parallelism(topology),
        *_sampling(topology),
        *_window(topology),
        *_shared(topology),
        *_login(topology),
        *_server_key(topology),
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
            duplicates = " and ".join(
                f"{key}[{index}]" for index, other_name in enumerate(names) if other_name == name
            )
            yield f"{duplicates} are both called {quoted(name)}: give each pool a name of its own"


def _hosts(topology: Topology) -> Iterator[str]:
    declared: set[str] = set()
    for index, host in enumerate(topology.hosts):
        try:
            names = hosts_of(host.name)
        except ValueError as error:
            yield f"hosts[{index}].name: {error}"
            return
        for name in names:
            if name in declared:
                yield f"hosts[{index}].name: {name} is named twice"
            declared.add(name)
    roles: dict[str, HostedSection] = {
        "nats": topology.nats,
        "postgres": topology.postgres,
        "orchestrators": topology.orchestrators,
        "gateways": topology.gateways,
        "trainer": topology.trainer,
        "web": topology.web,
        **{f"runners[{number}]": pool for number, pool in enumerate(topology.runners)},
        **{f"verifiers[{number}]": pool for number, pool in enumerate(topology.verifiers)},
        **{f"servers[{number}]": pool for number, pool in enumerate(topology.servers)},
    }
    for key, role in roles.items():
        for pattern in role.hosts:
            try:
                missing = [name for name in hosts_of(pattern) if name not in declared]
            except ValueError as error:
                yield f"{key}.hosts: {error}"
                continue
            if missing:
                listed = ", ".join(host.name for host in topology.hosts) or "none"
                yield f"{key}.hosts: {missing[0]} is none of the hosts (known: {listed})"


def _parallelism(topology: Topology) -> Iterator[str]:
    trainer = topology.trainer
    gpus = trainer.nodes * trainer.gpus_per_node
    if trainer.gpus_per_node and trainer.ranks > gpus:
        yield (
            f"trainer.ranks = {trainer.ranks} needs {trainer.ranks} GPUs, but trainer.nodes × gpus_per_node = "
            f"{trainer.nodes} × {trainer.gpus_per_node} = {gpus}"
        )
    elif trainer.gpus_per_node and trainer.ranks < gpus:
        yield (
            f"trainer.ranks = {trainer.ranks} leaves {gpus - trainer.ranks} GPUs idle: trainer.nodes × gpus_per_node = "
            f"{trainer.nodes} × {trainer.gpus_per_node} = {gpus}"
        )
    elif trainer.ranks % trainer.nodes:
        yield f"trainer.ranks = {trainer.ranks} cannot be the same number on each of trainer.nodes = {trainer.nodes}"
    for index, pool in enumerate(topology.servers):
        key = f"servers[{index}]"
        if pool.engine is ServerEngine.EMBEDDED:
            if pool.nodes > 1 or pool.tp * pool.dp * pool.pp > 1 or pool.gpus_per_node:
                yield (
                    f"{key}: the embedded engine is one process on CPUs, not nodes × tp × dp × pp = {pool.nodes} × {pool.tp} × {pool.dp} × "
                    f'{pool.pp} with gpus_per_node = {pool.gpus_per_node}: set engine = "sglang", or gpus_per_node = 0 and the others to 1'
                )
            continue
        gpus_given = pool.nodes * pool.gpus_per_node
        if pool.gpus != gpus_given:
            verb = "needs" if pool.gpus > gpus_given else "uses only"
            yield (
                f"{key}: tp × pp × dp = {pool.tp} × {pool.pp} × {pool.dp} {verb} {pool.gpus} GPUs, but nodes × gpus_per_node = "
                f"{pool.nodes} × {pool.gpus_per_node} = {gpus_given}"
            )
        elif pool.tp % pool.nodes and pool.pp % pool.nodes:
            yield f"{key}: neither tp = {pool.tp} nor pp = {pool.pp} can be divided by nodes = {pool.nodes}"
    reserved, count = topology.penstock.servers.evaluation, sum(pool.replicas for pool in topology.servers)
    if reserved >= count:
        yield f"config.servers.evaluation = {reserved} of {count} rollout servers (the sum of servers.replicas) leaves none for training"


def _sampling(topology: Topology) -> Iterator[str]:
    if error := topology.penstock.sampling.untrainable:  # otherwise the trainer would report it, on its GPUs
        yield f"config.{error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """The groups that may be dispatched while the slowest one runs, min(N, (S+1)·P) + W, against those that overtake it. A
    `scheduling.admission.window_reach` below 1 idles the trainer. `slots`: of all runners, at their maximum count."""

    slots: int
    verify_slots: int
    group_size: int
    capacity: int
    places: int
    window: int
    ratio: float  # the slowest group's time, in means

    @property
    def groups(self) -> float:
        """Number of groups that the slots hold."""
        return self.slots / self.group_size

    @property
    def reach(self) -> int:
        return self.places + self.window

    @property
    def needed(self) -> float:
        return self.groups * self.ratio


def bridge(topology: Topology) -> Bridge:
    """The bridge of a topology."""
    queue = topology.penstock.queue
    slots, verify_slots = (
        sum(pool.most * pool.slots for pool in pools) for pools in (topology.runners, topology.verifiers)
    )
    return Bridge(
        slots=slots,
        verify_slots=verify_slots,
        group_size=queue.group_size,
        capacity=queue.capacity,
        places=queue.places,
        window=queue.window,
        ratio=topology.load.longest_over_mean,
    )


def _window(topology: Topology) -> Iterator[str]:
    plan = bridge(topology)
    if plan.slots < plan.group_size:
        yield (
            f"runners: replicas × slots = {plan.slots}, but config.queue.group_size = {plan.group_size} rollouts of a group run together: "
            "raise runners.slots"
        )
        return
    queue = topology.penstock.queue
    if queue.policy != GREEDY and plan.reach < plan.needed:
        share = 0.0 if queue.policy == FIFO else queue.window_fraction
        minimum = int(-(-plan.needed // (1 + share))) + 1
        larger = {"capacity": minimum} if queue.capacity < minimum else {}
        if (queue.max_staleness + 1) * queue.batch_groups < minimum:
            larger["max_staleness"] = -(-minimum // queue.batch_groups) - 1
        settings = " and ".join(f"config.queue.{key} to {value}" for key, value in larger.items())
        yield (
            f"config.queue: min(N, (S+1)·P) + W = min({plan.capacity}, {queue.max_staleness + 1}·{queue.batch_groups}) + {plan.window} = "
            f"{plan.reach} groups idle the trainer: "
            f"runners hold {plan.slots} slots ÷ group_size {plan.group_size} = {plan.groups:g} groups, and the slowest takes "
            f"load.longest_over_mean = {plan.ratio:g} times the mean, so {plan.groups:g} × {plan.ratio:g} = {plan.needed:g} pass it by then: "
            f"set {settings}, or take fewer slots"
        )


def _shared(topology: Topology) -> Iterator[str]:
    shared = topology.shared
    users = (ProcessRole.GATEWAY, ProcessRole.ROLLOUT_SERVER, ProcessRole.TRAINER)
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
        yield f"shared.path = {quoted(shared.path)} must be absolute: policy versions are known by it on every host"
    if not shared.model:
        yield "shared.model is empty: name the directory of the first policy"


def _login(topology: Topology) -> Iterator[str]:
    secrets = topology.secrets
    if secrets.nats_login is None:
        return
    if topology.nats.external:
        yield "secrets.nats_login is for servers of the run's own, but nats.external says that they are there already: take it out"
    elif secrets.nats_url is None:
        yield "secrets.nats_login lets NATS ask for a login, but no process would have one: name in secrets.nats_url the URL with it, too"


def _server_key(topology: Topology) -> Iterator[str]:
    secrets = topology.secrets
    of_sglang = [number for number, pool in enumerate(topology.servers) if pool.engine is ServerEngine.SGLANG]
    if secrets.server_key is None and secrets.server_key_config is not None:
        yield "secrets.server_key_config lets SGLang ask for a key, but no gateway would have one: name in secrets.server_key the file with it, too"
    elif secrets.server_key is not None and secrets.server_key_config is None and of_sglang:
        yield "secrets.server_key gives gateways a key, but SGLang would not ask for it: name in secrets.server_key_config its YAML file, too"
    if secrets.server_key_config is None:
        return
    for number in of_sglang:
        if any(option.partition("=")[0] == "--config" for option in topology.servers[number].options):
            yield f"servers[{number}].options: --config is secrets.server_key_config, and SGLang reads one such file: put its other keys there, too"


def _namespaces(topology: Topology) -> Iterator[str]:
    k8s = topology.kubernetes
    if k8s.namespace == k8s.sandbox_namespace:
        yield (
            f"kubernetes.sandbox_namespace = {quoted(k8s.sandbox_namespace)} is kubernetes.namespace too: the account that creates sandboxes "
            "can create and delete pods in that namespace, which must not be the run's own"
        )


def _places(topology: Topology) -> Iterator[str]:
    """Check ports, GPUs, cores and memory of each host."""
    processes, machines = placed(topology), topology.machines
    owners: dict[tuple[str, int], list[str]] = defaultdict(list)
    for process in processes:
        if process.host == ANYWHERE:
            continue  # each container has its own address
        for port_name, port in process.ports.items():
            owners[process.host, port].append(f"{process.name} ({process.key}, {port_name})")
    for (host, port), claimants in owners.items():
        if len(claimants) > 1:
            yield f"port {port} of host {host} has two owners: {' and '.join(claimants[:2])}: change the port of one of them"
        if port > 65535:
            yield f"{claimants[0]} would take port {port} of host {host}: begin with a smaller one"
    for name, machine in machines.items():
        gpus_by_process: dict[str, int] = defaultdict(int)
        for process in processes:
            if process.host == name:
                gpus_by_process[process.key] += len(process.gpus)
        requested = sum(gpus_by_process.values())
        if requested > machine.gpus:
            parts = " + ".join(f"{count} ({key})" for key, count in gpus_by_process.items() if count)
            yield f"host {name} has gpus = {machine.gpus}, but its processes need {parts} = {requested}"
    occupied: set[tuple[str, str, int]] = set()
    for process in processes:
        if process.role in (ProcessRole.ROLLOUT_SERVER, ProcessRole.TRAINER):
            position = (process.name, process.host, 0)
            if process.host != ANYWHERE and position in occupied:
                yield f"{process.key}: two nodes of {process.name} would be host {process.host}: give it more hosts, or fewer nodes"
            occupied.add(position)
    nats = [process.host for process in processes if process.role == ProcessRole.NATS]
    if len(set(nats)) < len(nats) and ANYWHERE not in nats:
        yield (
            f"nats.nodes = {len(nats)}, but they are placed on {len(set(nats))} hosts ({', '.join(sorted(set(nats)))}): "
            "a host that is lost must not take two of them"
        )
