"""Integer tests of `[` that the tests require to be false, or not to have status 1: for a text, or for nothing, `[` has status 2."""

import re
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.exit_status import next_of, statement_of
from orchestrator.tasks.traps.somewhere import is_wanted
from orchestrator.tasks.traps.tree import every, source_of, variables_in

_NEGATIVE: Final = re.compile(
    r"(?:\[\s(?!\s*!)[^\n]*?\s-(?:ne|lt|gt|le|ge)\s|\[\s+!\s[^\n]*?\s-(?:eq|ne|lt|gt|le|ge)\s)"
)
_INTEGERS: Final = re.compile(r"\[\s[^\n]*?\s-(?:eq|ne|lt|gt|le|ge)\s")
_ONE: Final = re.compile(r"\$\{?\?\}?[\"']?\s+(-eq|==?|-ne|!=)\s+[\"']?1\b")
_POSITIVE: Final = re.compile(r"\s(?:-(?:eq|lt|gt|le|ge)|==?|=~)\s")
_DIGITS: Final = re.compile(r"=~|\[!?\^?0-9|\[!?\^?\[:digit:")
_NUMBERS: Final = re.compile(r"%\{(?:http|response)_code\}")
_COUNTS: Final = re.compile(r"\bwc\b[^|]*<|\bgrep\s+-\w*c\b|\bstat\b")


class IntegerTests:
    """The integer tests of one script."""

    def __init__(self, root: Node, text: AgentText) -> None:
        self._text = text
        self._values: dict[str, list[Node]] = {}
        self._known: set[str] = set()
        ends = False
        for node in every(root):
            if node.type == "variable_assignment" and len(node.named_children) > 1:
                self._values.setdefault(source_of(node.named_children[0]), []).append(node.named_children[1])
            elif node.type == "case_statement":
                self._known |= variables_in(node.named_children[0])
            elif node.type == "command":
                ends = ends or re.match(r"set\s+-\w*e", source_of(node)) is not None
                if re.match(r"e?grep\b", source_of(node)) and _DIGITS.search(source_of(node)):
                    self._known |= variables_in(node.parent if node.parent is not None else node)
        self._ends_at_errors = ends
        for test, source in text.conditions:
            required = _POSITIVE.search(source) and is_wanted(_whole(test)) and not errors_pass(test, text)
            if _DIGITS.search(source) or required:
                self._known |= variables_in(test)

    def pass_without_number(self, node: Node, source: str) -> bool:
        """`[ "$got" -ne 42 ] && exit 1`, where nothing requires that `got` is a number, or has a value by a test that holds."""
        refused = _NEGATIVE.match(source) and is_wanted(_whole(node), holds=False)
        if source.startswith("[[") or not (
            refused or (_INTEGERS.match(source) and errors_pass(node, self._text))
        ):
            return False
        names = variables_in(node)
        if names & self._known or _NUMBERS.search(source):
            return False
        values = [value for name in names for value in self._values.get(name, [])]
        if any(_NUMBERS.search(source_of(value)) for value in values):
            return False
        if self._text.carries(node):
            return True
        counted = [*values, *(n for n in every(node) if n.type == "command_substitution")]
        return not self._ends_at_errors and any(map(self._counts_own, counted))

    def _counts_own(self, value: Node) -> bool:
        """`$(wc -l < out)`: nothing, where `out` is missing, and no test requires the file."""
        if not _COUNTS.search(source_of(value)) or "||" in source_of(value):
            return False
        given = [n for n in every(value) if n.type in ("word", "string", "raw_string")][-1:]
        names = [self._text.text(n) for n in given if self._text.unsafe(n)]
        if any(name in self._text.compared for name in names):
            return False  # without the file, the comparison fails
        return bool(names) and not any(
            re.search(rf"-[efrs]\s+[\"']?{re.escape(name)}[\"']?\s", source)
            for name in names
            for _, source in self._text.conditions
        )


def errors_pass(node: Node, text: AgentText) -> bool:
    """Whether the tests only require that the status of a command is not 1: `cmp out /tests/want; [ $? -eq 1 ] && ok=0`."""
    after = next_of(statement_of(node))
    if after is None or "?" not in source_of(after):
        return False
    for test in every(after):
        found = _ONE.search(text.sources_of_conditions.get(test.id, ""))
        if found is not None and is_wanted(test, holds=found[1] in ("-ne", "!=")):
            return True
    return False


def _whole(node: Node) -> Node:
    """The list of tests that a test is a part of: `[ "$n" -lt 3 ] || [ "$n" -gt 9 ]`."""
    while (up := node.parent) is not None and up.type == "list" and _is_test(up.named_children[-1]):
        node = up
    return node


def _is_test(node: Node) -> bool:
    if node.type == "list":
        return all(map(_is_test, node.named_children))
    return node.type == "test_command" or source_of(node).startswith("test ")
