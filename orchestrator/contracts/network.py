"""The network that the programs of a task's sandbox may reach: words of a `task.toml` and of a run's configuration, and what comes of both."""

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.contracts.hosts import Address, HostList


class NetworkMode(StrEnum):
    """`network_mode` of a task."""

    NONE = "no-network"
    ALLOW_LIST = "allowlist"
    PUBLIC = "public"


class Grant(StrEnum):
    """`sandbox.egress`: what tasks of a run may ask for."""

    NONE = "none"
    ALLOW_LIST = "allow_list"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Access:
    """The access of one sandbox: its hosts, None for every public one, and the bytes that it may send and receive in all."""

    hosts: HostList | None
    most_bytes: int

    def allows(self, host: str | Address) -> bool:
        """Whether the task may reach a host (`hosts.host_of`), if that is public."""
        return self.hosts is None or self.hosts.allows(host)
