"""Other counts for a topology: their effects, computed before any change. Pure; `commands` has the commands for each target.

The new topology must pass every rule of the old one (`reading.read`). An invalid one is refused with the key and the arithmetic.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.queue_window import GREEDY
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.cluster.checks import Bridge, bridge
from orchestrator.deploy.cluster.edit import Key, spelt, with_counts
from orchestrator.deploy.cluster.placement import PlacedProcess, placed
from orchestrator.deploy.cluster.processes import READ_BY
from orchestrator.deploy.cluster.reading import read
from orchestrator.deploy.cluster.topology import Topology

SINGLE = ("gateways", "orchestrators")
POOLED = ("runners", "verifiers", "servers")
OTHERWISE: Mapping[str, str] = {
    ProcessRole.TRAINER: "there is one trainer: all of its ranks begin again with another number (ops/guides/ranks.md)",
    ProcessRole.NATS: "nats.nodes is 1, 3 or 5, and servers join or leave by NATS's own means",
    ProcessRole.POSTGRES: "PostgreSQL is its operator's, or its owner's, affair",
    ProcessRole.WEB: "one dashboard is enough",
}
_WANTED = re.compile(
    r"(?P<role>[a-z]+)(\.(?P<pool>[a-z0-9-]+))?=(?P<count>[0-9]{1,6})(\.\.(?P<most>[0-9]{1,6}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One number of the topology. `called`: its name in requests, runners.big."""

    key: Key
    called: str
    before: int
    after: int

    @property
    def sentence(self) -> str:
        return f"{spelt(self.key)}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of penstock.toml that follows from counts. `read_by`: the roles that restart to read it."""

    key: str
    before: int
    after: int
    unit: str
    read_by: tuple[str, ...]

    @property
    def sentence(self) -> str:
        readers = f": read again by {' and '.join(self.read_by)}" if self.read_by else ""
        return f"{self.key}: {self.before} → {self.after} {self.unit}{readers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From one topology to another. `comes`, `goes`: processes; `moved`: those in both, with other ports, GPUs or another host."""

    before: Topology
    after: Topology
    counts: Sequence[Count]
    comes: Sequence[PlacedProcess]
    goes: Sequence[PlacedProcess]
    moved: Sequence[tuple[PlacedProcess, PlacedProcess]]
    settings: Sequence[Setting]

    @property
    def bridges(self) -> tuple[Bridge, Bridge]:
        return bridge(self.before), bridge(self.after)

    def apart(self) -> "Change":
        """The change on targets that give every process its own address and choose its machine: nothing moves."""
        added, removed = (
            [replace(each, host="", ports={}, gpus=()) for each in processes]
            for processes in (self.comes, self.goes)
        )
        return replace(self, comes=added, goes=removed, moved=())

    @property
    def readers(self) -> tuple[str, ...]:
        """The roles that restart because one of their settings changes."""
        return tuple(dict.fromkeys(role for setting in self.settings for role in setting.read_by))


def change(raw: dict[str, Any], requested: Sequence[str], source: str) -> Change:
    """The change that `requested` (runners=4, runners.big=2..8, gateways=3) makes to the topology in `raw`.
    ConfigurationError, one line, if invalid."""
    old_topology = read(raw, source)
    counts = [count for each in requested for count in _counts(old_topology, each)]
    keys = [count.key for count in counts]
    if repeated := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigurationError(f"{spelt(repeated)} is requested twice")
    counts = [count for count in counts if count.after != count.before]
    if not counts:
        raise ConfigurationError(f"{source} has {' '.join(requested)} already: there is nothing to change")
    new_topology = read(with_counts(raw, numbers(counts)), source)
    old, new = (
        {(each.name, each.node): each for each in placed(topology)}
        for topology in (old_topology, new_topology)
    )
    return Change(
        before=old_topology,
        after=new_topology,
        counts=counts,
        comes=[each for name, each in new.items() if name not in old],
        goes=[each for name, each in old.items() if name not in new],
        moved=[(each, new[name]) for name, each in old.items() if name in new and each != new[name]],
        settings=_settings(old_topology, new_topology),
    )


def numbers(counts: Sequence[Count]) -> Mapping[Key, int]:
    """The counts in the form of `edit`."""
    return {count.key: count.after for count in counts}


def _counts(topology: Topology, requested: str) -> list[Count]:
    found = _WANTED.fullmatch(requested)
    if found is None:
        raise ConfigurationError(
            f"{quoted(requested)} is not a count: write gateways=3, runners=4, runners.POOL=4, or runners=2..8 where KEDA scales between two"
        )
    role, pool, count = found["role"], found["pool"], int(found["count"])
    if role in OTHERWISE:
        raise ConfigurationError(f"{role} is not scaled: {OTHERWISE[role]}")
    if role not in (*SINGLE, *POOLED):
        raise ConfigurationError(f"unknown role {quoted(role)}; known: {', '.join((*SINGLE, *POOLED))}")
    if role in SINGLE:
        if pool or found["most"]:
            raise ConfigurationError(f"{role} is one pool with a fixed count: write {role}={count}")
        return [
            Count(
                key=(role, None, "replicas"),
                called=role,
                before=getattr(topology, role).replicas,
                after=count,
            )
        ]
    pools = getattr(topology, role)
    names = [each.name for each in pools]
    if pool is None and len(pools) > 1:
        raise ConfigurationError(
            f"{role} has {len(pools)} pools: say which, {' or '.join(f'{role}.{name}={count}' for name in names)}"
        )
    if pool is not None and pool not in names:
        raise ConfigurationError(f"{role} has no pool {quoted(pool)}; known: {', '.join(names)}")
    index = 0 if pool is None else names.index(pool)
    label = role if len(pools) == 1 else f"{role}.{names[index]}"
    counted = pools[index]
    changes = [Count(key=(role, index, "replicas"), called=label, before=counted.replicas, after=count)]
    if found["most"]:
        if role == "servers":
            raise ConfigurationError(
                "servers: gateways lease them one by one, so they are not scaled automatically: name one count"
            )
        changes.append(
            Count(
                key=(role, index, "max_replicas"),
                called=label,
                before=counted.max_replicas,
                after=int(found["most"]),
            )
        )
    return changes


def _settings(before: Topology, after: Topology) -> list[Setting]:
    old, new = bridge(before), bridge(after)

    def addresses(of: Topology, role: str) -> list[tuple[str, int]]:
        return [
            (each.host, each.ports["http"]) for each in placed(of) if each.role == role and each.node == 0
        ]

    found = [
        Setting(
            key="rollout.slots",
            before=old.slots,
            after=new.slots,
            unit="rollouts at a time",
            read_by=READ_BY["rollout.slots"],
        ),
        Setting(
            key="rollout.verify_slots",
            before=old.verify_slots,
            after=new.verify_slots,
            unit="verifications at a time",
            read_by=(),
        ),
    ]
    settings = [each for each in found if each.before != each.after]
    for key, role in (("servers.urls", ProcessRole.ROLLOUT_SERVER), ("gateway.urls", ProcessRole.GATEWAY)):
        old_addresses, new_addresses = addresses(before, role), addresses(after, role)
        if old_addresses != new_addresses:
            settings.append(
                Setting(
                    key=key,
                    before=len(old_addresses),
                    after=len(new_addresses),
                    unit="addresses",
                    read_by=READ_BY[key],
                )
            )
    return settings


def window_sentences(change: Change) -> list[str]:
    """The effect of the counts on min(N, (S+1)·P) + W, the groups that may be dispatched while one runs: the arithmetic of `checks`."""
    old, new = change.bridges
    if old.slots == new.slots or change.after.penstock.queue.policy == GREEDY:
        return []
    return [
        f"slots: {old.slots} → {new.slots} ÷ group_size {new.group_size} = {new.groups:g} groups, × load.longest_over_mean {new.ratio:g} = "
        f"{new.needed:g} pass the slowest; min(N, (S+1)·P) + W = {new.places} + {new.window} = {new.reach} bridge them",
    ]
