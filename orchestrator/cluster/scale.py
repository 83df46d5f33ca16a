"""Other counts for a topology: what changes with them, before anything does. Pure; `commands` says how it is done on each target.

The new topology is held to every rule of the old one (`reading.read`): what cannot be is refused with the key and the arithmetic.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.cluster.checks import Bridge, bridge
from orchestrator.cluster.edit import Key, spelt, with_counts
from orchestrator.cluster.placement import Process, placed
from orchestrator.cluster.processes import READ_BY
from orchestrator.cluster.reading import read
from orchestrator.cluster.topology import Topology
from orchestrator.contracts.errors import ConfigurationError

SINGLE = ("gateways", "orchestrators")
POOLED = ("runners", "verifiers", "servers")
OTHERWISE = {
    "trainer": "there is one trainer: all of its ranks begin again with another number (ops/guides/ranks.md)",
    "nats": "nats.nodes is 1, 3 or 5, and servers join or leave by NATS's own means",
    "postgres": "PostgreSQL is its operator's, or its owner's, affair",
    "web": "one dashboard is enough",
}
_WANTED = re.compile(r"(?P<role>[a-z]+)(\.(?P<pool>[a-z0-9-]+))?=(?P<count>\d{1,6})(\.\.(?P<most>\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class Count:
    """One number of the topology. `called`: as it is asked for, runners.big."""

    key: Key
    called: str
    before: int
    after: int

    @property
    def sentence(self) -> str:
        return f"{spelt(self.key)}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of penstock.toml that follows from counts. `read_by`: the roles that begin anew to read it."""

    key: str
    before: int
    after: int
    unit: str
    read_by: tuple[str, ...]

    @property
    def sentence(self) -> str:
        readers = f": read anew by {' and '.join(self.read_by)}" if self.read_by else ""
        return f"{self.key}: {self.before} → {self.after} {self.unit}{readers}"


@dataclass(frozen=True, slots=True)
class Change:
    """From one topology to another. `comes`, `goes`: processes; `moved`: those that are in both, with other ports, GPUs or another host."""

    before: Topology
    after: Topology
    counts: Sequence[Count]
    comes: Sequence[Process]
    goes: Sequence[Process]
    moved: Sequence[tuple[Process, Process]]
    settings: Sequence[Setting]

    @property
    def bridges(self) -> tuple[Bridge, Bridge]:
        return bridge(self.before), bridge(self.after)

    def apart(self) -> "Change":
        """As it is where every process has an address of its own, and another one chooses its machine: nothing moves."""
        comes, goes = (
            [replace(each, host="", ports={}, gpus=()) for each in processes]
            for processes in (self.comes, self.goes)
        )
        return replace(self, comes=comes, goes=goes, moved=())

    @property
    def readers(self) -> tuple[str, ...]:
        """The roles that begin anew because a setting of theirs changes."""
        return tuple(dict.fromkeys(role for setting in self.settings for role in setting.read_by))


def change(raw: dict[str, Any], asked: Sequence[str], source: str) -> Change:
    """What `asked` (runners=4, runners.big=2..8, gateways=3) makes of the topology in `raw`. ConfigurationError, one line, when it cannot be."""
    before = read(raw, source)
    counts = [count for each in asked for count in _counts(before, each)]
    keys = [count.key for count in counts]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigurationError(f"{spelt(twice)} is asked for twice")
    counts = [count for count in counts if count.after != count.before]
    if not counts:
        raise ConfigurationError(f"{source} has {' '.join(asked)} already: there is nothing to change")
    after = read(with_counts(raw, numbers(counts)), source)
    old, new = ({(each.name, each.node): each for each in placed(of)} for of in (before, after))
    return Change(
        before, after, counts,
        comes=[each for name, each in new.items() if name not in old],
        goes=[each for name, each in old.items() if name not in new],
        moved=[(each, new[name]) for name, each in old.items() if name in new and each != new[name]],
        settings=_settings(before, after),
    )  # fmt: skip


def numbers(counts: Sequence[Count]) -> Mapping[Key, int]:
    """As `edit` takes them."""
    return {count.key: count.after for count in counts}


def _counts(topology: Topology, asked: str) -> list[Count]:
    found = _WANTED.fullmatch(asked)
    if found is None:
        raise ConfigurationError(
            f"{asked!r} is no count: write gateways=3, runners=4, runners.POOL=4, or runners=2..8 where KEDA scales between two"
        )
    role, pool, count = found["role"], found["pool"], int(found["count"])
    if role in OTHERWISE:
        raise ConfigurationError(f"{role} is not scaled: {OTHERWISE[role]}")
    if role not in (*SINGLE, *POOLED):
        raise ConfigurationError(f"unknown role {role!r}; known: {', '.join((*SINGLE, *POOLED))}")
    if role in SINGLE:
        if pool or found["most"]:
            raise ConfigurationError(f"{role} is one pool with a fixed count: write {role}={count}")
        return [Count((role, None, "replicas"), role, getattr(topology, role).replicas, count)]
    pools = getattr(topology, role)
    names = [each.name for each in pools]
    if pool is None and len(pools) > 1:
        raise ConfigurationError(
            f"{role} has {len(pools)} pools: say which, {' or '.join(f'{role}.{name}={count}' for name in names)}"
        )
    if pool is not None and pool not in names:
        raise ConfigurationError(f"{role} has no pool {pool!r}; known: {', '.join(names)}")
    index = 0 if pool is None else names.index(pool)
    called = role if len(pools) == 1 else f"{role}.{names[index]}"
    of = pools[index]
    made = [Count((role, index, "replicas"), called, of.replicas, count)]
    if found["most"]:
        if role == "servers":
            raise ConfigurationError(
                "servers: gateways lease them one by one, so nothing scales them by itself: name one count"
            )
        made.append(Count((role, index, "max_replicas"), called, of.max_replicas, int(found["most"])))
    return made


def _settings(before: Topology, after: Topology) -> list[Setting]:
    old, new = bridge(before), bridge(after)

    def addresses(of: Topology, role: str) -> list[tuple[str, int]]:
        return [
            (each.host, each.ports["http"]) for each in placed(of) if each.role == role and each.node == 0
        ]

    found = [
        Setting("rollout.slots", old.slots, new.slots, "rollouts at a time", READ_BY["rollout.slots"]),
        Setting("rollout.verify_slots", old.verify_slots, new.verify_slots, "verifications at a time", ()),
    ]
    made = [each for each in found if each.before != each.after]
    for key, role in (("servers.urls", "rollout-server"), ("gateway.urls", "gateway")):
        was, is_now = addresses(before, role), addresses(after, role)
        if was != is_now:
            made.append(Setting(key, len(was), len(is_now), "addresses", READ_BY[key]))
    return made


def window_sentences(change: Change) -> list[str]:
    """What the counts do to N + W, the groups that may be in flight: the arithmetic of `checks`."""
    old, new = change.bridges
    if old.slots == new.slots:
        return []
    return [
        f"slots: {old.slots} → {new.slots} ÷ group_size {new.group_size} = {new.groups:g} groups, × load.longest_over_mean {new.ratio:g} = "
        f"{new.needed:g} pass the slowest; N + W = {new.capacity} + {new.window} = {new.reach} bridge them",
    ]
