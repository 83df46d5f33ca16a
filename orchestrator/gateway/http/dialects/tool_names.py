"""The tools of one request by name. On the wire a tool has a name and, on the Responses wire, perhaps a namespace; the policy sees one joined name.

| a name on the wire | means |
|---|---|
| with a namespace | the tool of that namespace and name |
| without a namespace | the plain tool of that name, else the only tool of that name in any namespace, else the tool of that joined name |
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.messages.typed_tools import RESPONSES
from orchestrator.gateway.problems import bad_request

WireName = tuple[str | None, str, str]
"""(namespace, name, type of the tool)."""


class ToolNames:
    """The tools that a request offers, by the policy's names."""

    def __init__(self) -> None:
        self._offered: dict[str, tuple[WireName, Mapping[str, Any]]] = {}
        # The policy's names, by the names on the wire, then by namespace.
        self._meanings: dict[str, dict[str | None, str]] = {}

    @classmethod
    def plain(cls, tools: Sequence[Mapping[str, Any]]) -> "ToolNames":
        """The names of function tools on a wire without namespaces."""
        names = cls()
        for tool in tools:
            names.add(None, str(tool["function"]["name"]), "function", tool)
        return names

    def add(self, namespace: str | None, name: str, kind: str, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """`tool`, in the policy's form. Raises Problem 400 when a different tool has its name."""
        flat, declared = joined(namespace, name), ((namespace, name, kind), tool)
        if self._offered.setdefault(flat, declared) != declared:
            raise bad_request(f"two different tools are called {quoted(flat)}: rename one", "tools")
        self._meanings.setdefault(name, {})[namespace] = flat
        return tool

    def keep_first(self, count: int) -> None:
        """Drop the tools that were added after the first `count`."""
        while len(self._offered) > count:
            _, ((namespace, name, _), _) = self._offered.popitem()
            del self._meanings[name][namespace]

    def __len__(self) -> int:
        return len(self._offered)

    @property
    def wire(self) -> dict[str, WireName]:
        """The wire's names by the policy's names."""
        return {flat: name for flat, (name, _) in self._offered.items()}

    @property
    def typed(self) -> dict[str, str]:
        """The policy's names, by type, of tools that have only a type on the wire."""
        return {kind: flat for flat, ((_, _, kind), _) in self._offered.items() if kind in RESPONSES}

    def chosen(self, name: str, namespace: object, where: str) -> str | None:
        """The policy's name of the tool that a choice means; None if no tool has it. Raises Problem 400 naming the candidates when it may mean
        several."""
        found = self._meant(name, namespace, where, where)
        if len(found) > 1:
            candidates = " or ".join(f"{quoted(name)} of the namespace {quoted(own)}" for own in found)
            raise bad_request(f"{where} may mean {candidates}: give its namespace", where)
        return next(iter(found.values()), None)

    def called(self, name: str, namespace: object, where: str) -> str:
        """The policy's name of the tool of a call in the history. A name that no tool has, or several, stays: what is past is not refused."""
        found = self._meant(name, namespace, where, "input")
        return next(iter(found.values())) if len(found) == 1 else joined(namespace, name)

    def _meant(self, name: str, namespace: object, where: str, param: str) -> Mapping[str | None, str]:
        """The policy's names of the tools that a name on the wire may mean, by namespace."""
        if namespace is not None and not isinstance(namespace, str):
            raise bad_request(f"{where}.namespace must be a string", param)
        found = self._meanings.get(name, {})
        own = namespace or None
        if own in found:
            return {own: found[own]}
        if own is not None:
            return {}
        return {None: name} if not found and name in self._offered else found


def joined(namespace: object, name: str) -> str:
    """One name for a tool of a namespace: `mcp__files` or `mcp__files__`, `read` → `mcp__files__read`."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
