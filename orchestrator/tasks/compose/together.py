"""Relations between the services of a compose file: their order, names, network and volumes."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.collected import MAIN
from orchestrator.tasks.compose.document import given
from sandboxes.base import ServiceState, SideService

TAKEN: Final = ("localhost", MAIN, "sandbox")
"""Names by which the agent's sandbox is reached, or reaches itself. The gateway has none: a socket leads to it."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
PLACE: Final = re.compile(r"/[\w./-]{1,500}", re.ASCII)


def check_together(
    found: Mapping[str, Any], side: Mapping[str, Any], services: Sequence[SideService], at: str
) -> tuple[SideService, ...]:
    """The services, each after those that it waits for. `found`: the whole file, `side`: the tables of the side services. ValueError where they
    contradict each other."""
    _check_names(services, at)
    _check_network(found, found["services"], at)
    _check_volumes(side, at)
    return _ordered(services, at)


def after_of(value: Any, at: str) -> dict[str, ServiceState]:
    if isinstance(value, list):
        value = {name if isinstance(name, str) else repr(name): {} for name in value}
    if not isinstance(value, dict):
        raise ValueError(f"{at}depends_on must be a list or a mapping of services, got {quoted(value)}")
    found: dict[str, ServiceState] = {}
    states = {state.value: state for state in ServiceState}
    for name, table in value.items():
        if not isinstance(table, dict | None):
            raise ValueError(f"{at}depends_on.{name} must be a mapping with a condition, got {quoted(table)}")
        settings = {"condition": ServiceState.STARTED.value, "required": True, "restart": False}
        stated = {**settings, **(table or {})}
        condition = stated["condition"]
        if not isinstance(condition, str) or condition not in states:
            raise ValueError(
                f"{at}depends_on.{name}.condition = {quoted(condition)} is not honoured: write {' or '.join(states)}"
            )
        for key, each in stated.items():
            if key != "condition" and each is not settings.get(key):
                raise ValueError(f"{at}depends_on.{name}.{key} = {quoted(each)} is not honoured: remove it")
        found[str(name)] = states[condition]
    return found


def names_of(table: Mapping[str, Any], at: str) -> Iterator[str]:
    """The further names of a service."""
    for key in ("hostname", "container_name"):
        if table.get(key) is not None:
            yield _plain_name(table[key], f"{at}{key}")
    for network in networks_of(given(table, "networks", {}), at).values():
        for alias in network:
            yield _plain_name(alias, f"{at}networks.aliases")


def _plain_name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"{what} must be a name of letters, digits and _.-, got {quoted(value)}")
    if value.lower() in TAKEN:
        raise ValueError(f"{what}: the name {value} is taken by the agent's sandbox: choose another one")
    return value


def networks_of(value: Any, at: str) -> dict[str, Sequence[Any]]:
    """Network → the aliases in it."""
    if isinstance(value, list):
        value = {str(name): None for name in value}
    if not isinstance(value, dict):
        raise ValueError(f"{at}networks must be a list or a mapping of names, got {quoted(value)}")
    found: dict[str, Sequence[Any]] = {}
    for name, table in value.items():
        for key in table or {} if isinstance(table, dict | None) else [quoted(table)]:
            if key != "aliases":
                raise ValueError(f"{at}networks.{name}.{key} is not honoured: remove it")
        aliases = (table or {}).get("aliases") or []
        if not isinstance(aliases, list):
            raise ValueError(f"{at}networks.{name}.aliases must be a list of names, got {quoted(aliases)}")
        found[str(name)] = aliases
    return found


def volumes_of(value: Any, at: str) -> Iterator[tuple[str, str]]:
    """(name, path) of each volume; the name is empty without one."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{at}volumes must be a list, got {quoted(value)}")
    for each in value:
        if (
            isinstance(each, dict)
            and set(each) <= {"type", "source", "target"}
            and each.get("type") == "volume"
        ):
            name, path = str(each.get("source") or ""), str(each.get("target"))
        elif isinstance(each, str) and each.count(":") <= 1:
            name, _, path = each.rpartition(":")
        elif isinstance(each, str) and not NAME.fullmatch(each.partition(":")[0]):
            name, path = each.partition(":")[0], ""  # with a mode, which no bound file would need
        else:
            raise ValueError(f"{at}volumes has {quoted(each)}: only NAME:PATH is honoured, write that")
        if name and not NAME.fullmatch(name):
            raise ValueError(
                f"{at}volumes has {quoted(each)}: nothing of the machine is bound into a service, COPY it in the image's Dockerfile"
            )
        if not PLACE.fullmatch(path) or posixpath.normpath(path) != path:
            raise ValueError(
                f"{at}volumes has {quoted(each)}: its place must be an absolute path, got {quoted(path)}"
            )
        yield name, path


def _check_network(found: Mapping[str, Any], tables: Mapping[str, Any], at: str) -> None:
    """All are in one network. `tables`: the services, by name."""
    own = {
        name: networks_of(given(tables.get(name, {}), "networks", {}), f"{at}service {name}: ")
        for name in (MAIN, *tables)
    }
    used = {network for each in own.values() for network in each or ("default",)}
    if unknown := sorted(used - {"default", *(given(found, "networks", {}))}):
        raise ValueError(f"{at}the network {quoted(unknown[0])} is not among networks: add it there")
    if len(used) > 1:
        raise ValueError(
            f"{at}it has the networks {', '.join(sorted(used))[:200]}: a task has one, so write the same one, or none, for each and for {MAIN}"
        )


def _check_volumes(side: Mapping[str, Any], at: str) -> None:
    users: dict[str, str] = {}
    for service, table in side.items():
        for name, _ in volumes_of(given(table, "volumes", ()), at):
            if name and users.setdefault(name, service) != service:
                raise ValueError(
                    f"{at}the services {users[name]} and {service} share the volume {name}, which is not honoured: "
                    "let them exchange data over their network"
                )


def _check_names(services: Sequence[SideService], at: str) -> None:
    owners: dict[str, str] = {}
    for service in services:
        for name in dict.fromkeys(each.lower() for each in (service.name, *service.names)):
            if (owner := owners.setdefault(name, service.name)) != service.name:
                raise ValueError(
                    f"{at}the services {owner} and {service.name} have the same name {name}: rename one of them"
                )


def _ordered(services: Sequence[SideService], at: str) -> tuple[SideService, ...]:
    """Each after those that it waits for."""
    known = {each.name: each for each in services}
    for each in services:
        for name, state in each.after.items():
            if name == MAIN:
                raise ValueError(
                    f"{at}service {each.name} waits for {MAIN}, which starts last: remove it from depends_on"
                )
            if name not in known:
                raise ValueError(
                    f"{at}service {each.name}: depends_on names {quoted(name)}, which does not exist: add it, or remove it"
                )
            if state is ServiceState.HEALTHY and known[name].health is None:
                raise ValueError(
                    f"{at}service {each.name} waits until {name} is healthy, which has no healthcheck: add one to {name}"
                )
    placed: dict[str, SideService] = {}

    def place(service: SideService, path: tuple[str, ...]) -> None:
        if service.name in path:
            circle = " → ".join((*path[path.index(service.name) :], service.name))
            raise ValueError(f"{at}depends_on goes in a circle: {circle}: remove one of them")
        if service.name not in placed:
            for name in service.after:
                place(known[name], (*path, service.name))
            placed[service.name] = service

    for each in services:
        place(each, ())
    return tuple(placed.values())
