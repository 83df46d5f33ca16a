"""Tests of a script that only look at the clock: a program of the agent's that does nothing is fast."""

import re
from functools import cached_property
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.exit_status import Statuses, may_look
from orchestrator.tasks.traps.tree import every, source_of

NOTE: Final = "only the time that the agent's program takes decides: one that does nothing is fast enough"
_CLOCK: Final = re.compile(r"\b(?:SECONDS|EPOCHSECONDS|EPOCHREALTIME)\b|\bdate\s+(?:-u\s+)?[\"']?\+[\"']?%s")


class Elapsed:
    """The tests of one script that compare times of the clock."""

    def __init__(self, root: Node, text: AgentText) -> None:
        self._root, self._text, self._statuses = root, text, Statuses(root, text)
        self._nodes = [*every(root)]

    def decides(self, node: Node) -> bool:
        """Whether the tests succeed by this test, and nothing of the script looks at anything but the clock."""
        if node.id not in self._text.sources_of_conditions or not self._only_clock:
            return False
        return any(self._statuses.succeeds(node, holds) for holds in (True, False))

    @cached_property
    def _only_clock(self) -> bool:
        tests = self._text.conditions
        if not any(n.type == "command" and self._text.wrapped(n) for n in self._nodes):
            return False
        if not all(self._is_clock(test) for test, _ in tests):
            return False
        if any(may_look(node, self._text) for node in self._nodes):
            return False
        return bool(tests)

    def _is_clock(self, node: Node) -> bool:
        """Whether a test, or a value, is about the clock, and not about text of the agent's."""
        if self._text.names_in(node) or self._text.carries(node):
            return False
        return _mentions(source_of(node), self._times)

    @cached_property
    def _times(self) -> list[str]:
        """The variables with times of the clock, and with what is calculated from them."""
        values: dict[str, list[str]] = {}
        for node in self._nodes:
            if node.type == "variable_assignment" and len(node.named_children) > 1:
                value = source_of(node.named_children[1])
                values.setdefault(source_of(node.named_children[0]), []).append(value)
        found: list[str] = []
        for _ in values:  # each round finds what is calculated from the round before
            found = [
                name
                for name, given in values.items()
                if name == "SECONDS" or all(_mentions(one, found) for one in given)
            ]
        return found


def _mentions(source: str, times: list[str]) -> bool:
    """Whether a text reads the clock, or one of these variables."""
    return _CLOCK.search(source) is not None or any(re.search(rf"\b{name}\b", source) for name in times)
