"""Which process runs where: host, ports and GPUs of each, from the counts of a topology. Pure.

Processes of a role go to its hosts in turn. On one host the i-th process of a role takes the i-th port, starting at the role's own. GPUs are
assigned in order, rollout servers first. Without hosts there is one nameless machine of any size.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.cluster.topology import ServerPool, Topology, hosts_of

ANYWHERE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedProcess:
    """One process, or one node's part of it. `ports` by purpose; `key`: its key in the topology.

    `name` is unique in the run; `number` counts within its pool, `node` within the process.
    """

    role: ProcessRole
    pool: str
    name: str
    number: int
    host: str
    key: str
    ports: Mapping[str, int] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    node: int = 0


def _role_hosts(topology: Topology, patterns: tuple[str, ...]) -> list[str]:
    return (
        [name for pattern in patterns for name in hosts_of(pattern)] or list(topology.machines) or [ANYWHERE]
    )


def placed(topology: Topology) -> list[PlacedProcess]:
    """Every process of the run, including services, in the order of their starts."""
    return list(_Placement(topology).all())


def kinds(topology: Topology) -> dict[tuple[ProcessRole, str], PlacedProcess]:
    """One process of each role and pool, for targets where every process has its own address: with the topology's ports,
    and without a number in its name."""
    first = [each for each in _Placement(topology, apart=True).all() if each.number == 0 and each.node == 0]
    return {(each.role, each.pool): each for each in first}


class _Placement:
    def __init__(self, topology: Topology, *, apart: bool = False) -> None:
        self._topology = topology
        self._apart = apart
        self._local: Counter[tuple[ProcessRole, str]] = Counter()  # processes so far by role and host
        self._gpus: Counter[str] = Counter()  # assigned so far by host

    def _one(
        self,
        role: ProcessRole,
        pool: str,
        name: str,
        number: int,
        host: str,
        key: str,
        ports: Mapping[str, int],
        *,
        gpus: int = 0,
        node: int = 0,
    ) -> PlacedProcess:
        nth = 0 if self._apart else self._local[role, host]
        self._local[role, host] += 1
        first = 0 if self._apart else self._gpus[host]
        self._gpus[host] += gpus
        return PlacedProcess(
            role=role,
            pool=pool,
            name=name,
            number=number,
            host=host,
            key=key,
            ports={port_name: port + nth for port_name, port in ports.items()},
            gpus=tuple(range(first, first + gpus)),
            node=node,
        )

    def _some(
        self,
        role: ProcessRole,
        count: int,
        patterns: tuple[str, ...],
        key: str,
        ports: Mapping[str, int],
        pool: str = "",
    ) -> Iterator[PlacedProcess]:
        hosts = _role_hosts(self._topology, patterns)
        name = f"{role}-{pool}" if pool and pool != "default" else role
        for number in range(count):
            own = name if self._apart else f"{name}-{number}"
            yield self._one(role, pool, own, number, hosts[number % len(hosts)], key, ports)

    def all(self) -> Iterator[PlacedProcess]:
        topology = self._topology
        if not topology.nats.external:
            ports = {
                "client": topology.nats.port,
                **({"cluster": topology.nats.cluster_port} if topology.nats.nodes > 1 else {}),
                "monitor": topology.nats.monitor_port,
            }
            yield from self._some(ProcessRole.NATS, topology.nats.nodes, topology.nats.hosts, "nats", ports)
        if not topology.postgres.external:
            yield from self._some(
                ProcessRole.POSTGRES,
                1,
                topology.postgres.hosts,
                "postgres",
                {"client": topology.postgres.port},
            )
        for index, pool in enumerate(topology.servers):
            yield from self._servers(pool, f"servers[{index}]")
        yield from self._some(
            ProcessRole.ORCHESTRATOR,
            topology.orchestrators.replicas,
            topology.orchestrators.hosts,
            "orchestrators",
            {"metrics": topology.orchestrators.metrics_port},
        )
        yield from self._some(
            ProcessRole.GATEWAY,
            topology.gateways.replicas,
            topology.gateways.hosts,
            "gateways",
            {
                "http": topology.gateways.port,
                "sandboxes": topology.gateways.sandbox_port,
                "metrics": topology.gateways.metrics_port,
            },
        )
        for role, pools in (
            (ProcessRole.RUNNER, topology.runners),
            (ProcessRole.VERIFIER, topology.verifiers),
        ):
            for index, runners in enumerate(pools):
                yield from self._some(
                    role,
                    runners.replicas,
                    runners.hosts,
                    f"{role}s[{index}]",
                    {"metrics": runners.metrics_port},
                    runners.name,
                )
        yield from self._trainer()
        yield from self._some(
            ProcessRole.WEB,
            topology.web.replicas,
            topology.web.hosts,
            "web",
            {"http": topology.web.port, "metrics": topology.web.metrics_port},
        )

    def _servers(self, pool: ServerPool, key: str) -> Iterator[PlacedProcess]:
        hosts = _role_hosts(self._topology, pool.hosts)
        for number in range(pool.replicas):
            name = f"rollout-server-{pool.name}-{number}"
            for node in range(pool.nodes):
                host = hosts[(number * pool.nodes + node) % len(hosts)]
                ports = {"http": pool.port} if node == 0 else {}
                if pool.nodes > 1:
                    ports["meeting"] = pool.meeting_port
                yield self._one(
                    ProcessRole.ROLLOUT_SERVER,
                    pool.name,
                    name,
                    number,
                    host,
                    key,
                    ports,
                    gpus=pool.gpus_per_node if pool.gpus else 0,
                    node=node,
                )

    def _trainer(self) -> Iterator[PlacedProcess]:
        trainer = self._topology.trainer
        hosts = _role_hosts(self._topology, trainer.hosts)
        for node in range(trainer.nodes):
            ports = {"metrics": trainer.metrics_port} if node == 0 else {}
            if trainer.nodes > 1:
                ports["meeting"] = trainer.port
            yield self._one(
                ProcessRole.TRAINER,
                "",
                "trainer",
                0,
                hosts[node % len(hosts)],
                "trainer",
                ports,
                gpus=trainer.gpus_per_node,
                node=node,
            )
