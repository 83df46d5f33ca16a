"""The expected state of a run, from its configuration, or from its topology if there is one."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.bus.link import urls_of
from orchestrator.bus.nats import REPLICAS
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.settings.config import Config

POOLS = {"orchestrator": 16, "gateway": 16, "runner": 8, "verifier": 8, "trainer": 4, "web": 16}
"""Connections that a process may open: twice the size of each of its pools (pool.engine.open_engine)."""
PEOPLE = 10  # commands that people run in addition


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """`directory`: of the policies. `replicas`: of each stream. `monitors`: monitoring addresses of NATS, none: unknown.
    `processes`: by kind, None: those that report."""

    directory: Path
    replicas: int
    monitors: tuple[str, ...] = ()
    processes: dict[str, int] | None = None

    @property
    def connections(self) -> int | None:
        """Connections that all processes and people may open at PostgreSQL; None: unknown."""
        return None if self.processes is None else connections(self.processes)


def connections(processes: dict[str, int]) -> int:
    """Connections that this many processes by kind may open, plus those of people.

    >>> connections({"runner": 3, "trainer": 1})
    38
    """
    return PEOPLE + sum(POOLS.get(kind, 4) * count for kind, count in processes.items())


def by_configuration(config: Config, directory: Path, monitors: tuple[str, ...] = ()) -> Expected:
    """Three replicas if three servers are named."""
    several = len(urls_of(config.services.nats_url)) >= REPLICAS
    return Expected(directory=directory, replicas=REPLICAS if several else 1, monitors=monitors)


def by_topology(topology: Topology, directory: Path, monitors: tuple[str, ...] = ()) -> Expected:
    """Runner pools count with their maximum size."""
    counted = {
        "orchestrator": topology.orchestrators.replicas,
        "gateway": topology.gateways.replicas,
        "runner": sum(pool.most for pool in topology.runners),
        "verifier": sum(pool.most for pool in topology.verifiers),
        "trainer": 1,
        "web": topology.web.replicas,
    }
    return Expected(
        directory=directory,
        replicas=REPLICAS if topology.nats.nodes >= REPLICAS else 1,
        monitors=monitors,
        processes=counted,
    )
