"""The network of a task: what it asks for, as Harbor reads it, and whether the run grants it. Where it asks for nothing there is none.

`[agent]` and `[verifier]` override the environment in which they run. `allow_internet` is the older spelling of `network_mode`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.contracts.hosts import HostList
from orchestrator.contracts.network import Access, Grant, NetworkMode
from orchestrator.contracts.quote import quoted
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.settings import TaskSettings

OFFLINE: Final = "remove it, and bring what the task needs in its environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The network that a task requests, for its agent or its tests. `key`, `value`: the key that says so."""

    mode: NetworkMode
    hosts: tuple[str, ...]
    key: str
    value: Any


_NOTHING: Final = Wish(mode=NetworkMode.NONE, hosts=(), key="", value=None)


def of_agent(settings: TaskSettings) -> Wish:
    """The network of the agent, its health check and its collected commands."""
    return (
        _of_table(settings.agent.network, "[agent]")
        or _of_table(settings.environment, "[environment]")
        or _NOTHING
    )


def of_tests(settings: TaskSettings) -> Wish:
    """The network of the tests."""
    own = settings.verifier.environment if settings.verifier.is_separate else None
    return (
        _of_table(settings.verifier.network, "[verifier]")
        or _of_table(own or {}, "[verifier].environment")
        or (_of_table(settings.environment, "[environment]") if own is None else None)
        or _NOTHING
    )


def _of_table(table: Mapping[str, Any], name: str) -> Wish | None:
    """None: the table says nothing. Tasks accepted before these keys were honoured may hold anything."""
    mode, hosts = table.get("network_mode"), table.get("allowed_hosts")
    if mode in tuple(NetworkMode):
        named = tuple(hosts) if isinstance(hosts, list) and mode == NetworkMode.ALLOW_LIST else ()
        return Wish(mode=NetworkMode(mode), hosts=named, key=f"{name}.network_mode", value=mode)
    if hosts is None and isinstance(older := table.get("allow_internet"), bool):
        found = NetworkMode.PUBLIC if older else NetworkMode.NONE
        return Wish(mode=found, hosts=(), key=f"{name}.allow_internet", value=older)
    return None


def contradictions(settings: TaskSettings) -> Iterator[str]:
    """Hosts that a table lists and would not be read, and two spellings that disagree. The keys must be valid."""
    tables = {
        "[agent]": settings.agent.network,
        "[environment]": settings.environment,
        "[verifier]": settings.verifier.network,
        "[verifier].environment": settings.verifier.environment or {},
    }
    for name, table in tables.items():
        mode, older = table.get("network_mode"), table.get("allow_internet")
        if isinstance(older, bool) and mode is not None and older == (mode == NetworkMode.NONE):
            yield f"task.toml: {name}.network_mode and .allow_internet say different things: remove allow_internet"
        if (hosts := table.get("allowed_hosts")) and table.get("network_mode") != NetworkMode.ALLOW_LIST:
            yield (
                f"task.toml: {name}.allowed_hosts = {quoted(hosts)} is not honoured: "
                'it needs network_mode = "allowlist" next to it, write that or remove it'
            )


def refusals(settings: TaskSettings, section: SandboxSection, *, proxied: bool) -> Iterator[str]:
    """Requests of a task that the run does not grant, as sentences. `proxied`: whether the provider's sandboxes reach the proxy."""
    for wish in dict.fromkeys((of_agent(settings), of_tests(settings))):
        if (why := _refusal(wish, section, proxied=proxied)) is not None:
            yield f"task.toml: {wish.key} = {quoted(wish.value)} is not honoured: {why}"


def _refusal(wish: Wish, section: SandboxSection, *, proxied: bool) -> str | None:
    if wish.mode is NetworkMode.NONE:
        return None
    if section.egress is Grant.NONE:
        return f"sandboxes of this run have no network (sandbox.egress): {OFFLINE}"
    if not proxied:
        return f"sandboxes of the provider {section.provider} do not reach the run's egress proxy: {OFFLINE}"
    if wish.mode is NetworkMode.PUBLIC and section.egress is not Grant.PUBLIC:
        return 'this run grants allow-lists alone (sandbox.egress): write network_mode = "allowlist" and the hosts in allowed_hosts'
    bound = HostList.of(section.egress_hosts)
    if section.egress_hosts and (beyond := bound.beyond(wish.hosts)) is not None:
        return f"{quoted(beyond)} is not among the hosts that this run grants (sandbox.egress_hosts): remove it from allowed_hosts"
    return None


def access(wish: Wish, section: SandboxSection) -> Access | None:
    """The access of a sandbox; None: no network, also where the run does not grant what the task asks for."""
    if wish.mode is NetworkMode.NONE or _refusal(wish, section, proxied=True) is not None:
        return None
    hosts = None if wish.mode is NetworkMode.PUBLIC else HostList.of(wish.hosts)
    return Access(hosts, section.egress_mb << 20)
