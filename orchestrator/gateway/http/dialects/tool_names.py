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
        return tool

    def copy(self) -> dict[str, tuple[WireName, Mapping[str, Any]]]:
        """The tools so far, for `restore`."""
        return dict(self._offered)

    def restore(self, offered: dict[str, tuple[WireName, Mapping[str, Any]]]) -> None:
        """Drop the tools added since `copy`."""
        self._offered = offered

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
            candidates = " or ".join(f"{quoted(name)} of the namespace {quoted(own)}" for _, own in found)
            raise bad_request(f"{where} may mean {candidates}: give its namespace", where)
        return found[0][0] if found else None

    def called(self, name: str, namespace: object, where: str) -> str:
        """The policy's name of the tool of a call in the history. A name that no tool has, or several, stays: what is past is not refused."""
        found = self._meant(name, namespace, where, "input")
        return found[0][0] if len(found) == 1 else joined(namespace, name)

    def _meant(self, name: str, namespace: object, where: str, param: str) -> list[tuple[str, str | None]]:
        """The tools, by policy name and namespace, that a name on the wire may mean."""
        if namespace is not None and not isinstance(namespace, str):
            raise bad_request(f"{where}.namespace must be a string", param)
        found = [
            (flat, own)
            for flat, ((own, called, _), _) in self._offered.items()
            if called == name and (not namespace or own == namespace)
        ]
        if namespace:
            return found
        if not found and name in self._offered:
            return [(name, None)]
        return [(flat, own) for flat, own in found if own is None] or found


def joined(namespace: object, name: str) -> str:
    """One name for a tool of a namespace: `mcp__files` or `mcp__files__`, `read` → `mcp__files__read`."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
