"""What a run should find, from its configuration, or from its topology where there is one."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.bus.link import urls_of
from orchestrator.bus.nats import REPLICAS
from orchestrator.cluster.topology import Topology
from orchestrator.config import Config

POOLS = {"orchestrator": 16, "gateway": 16, "runner": 8, "verifier": 8, "trainer": 4, "web": 16}
"""Connections that a process may open: twice the size of each of its pools (pool.engine.open_engine)."""
PEOPLE = 10  # commands that people run beside it


@dataclass(frozen=True, slots=True)
class Expected:
    """`directory`: of the policies. `replicas`: of each stream. `monitors`: monitoring addresses of NATS, none: they are not known.
    `processes`: by kind, None: those that are heard of."""

    directory: Path
    replicas: int
    monitors: tuple[str, ...] = ()
    processes: dict[str, int] | None = None

    @property
    def connections(self) -> int | None:
        """That all processes and people may open at PostgreSQL; None: unknown."""
        return None if self.processes is None else connections(self.processes)


def connections(processes: dict[str, int]) -> int:
    """That so many processes by kind may open, and people beside them.

    >>> connections({"runner": 3, "trainer": 1})
    38
    """
    return PEOPLE + sum(POOLS.get(kind, 4) * count for kind, count in processes.items())


def by_configuration(config: Config, directory: Path, monitors: tuple[str, ...] = ()) -> Expected:
    """Three replicas where three servers are named."""
    several = len(urls_of(config.services.nats_url)) >= REPLICAS
    return Expected(directory, REPLICAS if several else 1, monitors)


def by_topology(topology: Topology, directory: Path, monitors: tuple[str, ...] = ()) -> Expected:
    """Runner pools count with the most that they may grow to."""
    counted = {
        "orchestrator": topology.orchestrators.replicas,
        "gateway": topology.gateways.replicas,
        "runner": sum(pool.most for pool in topology.runners),
        "verifier": sum(pool.most for pool in topology.verifiers),
        "trainer": 1,
        "web": topology.web.replicas,
    }
    return Expected(directory, REPLICAS if topology.nats.nodes >= REPLICAS else 1, monitors, counted)
