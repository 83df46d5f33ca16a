"""Tests of a script that compare two things of the agent's: `[ "$(cat out)" = "$(cat expected)" ]`."""

import posixpath
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import MOVES, AgentText
from orchestrator.tasks.traps.commands import DATA, INTERPRETERS
from orchestrator.tasks.traps.exit_status import may_look
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.own_word import started_by_wrapper
from orchestrator.tasks.traps.paid_text import JUDGES
from orchestrator.tasks.traps.somewhere import is_wanted
from orchestrator.tasks.traps.tree import every, listed, operands, source_of

_READS: Final = listed("cat head tail tr cut md5sum sha1sum sha256sum sha512sum cksum b2sum")
"""Commands that print a file, or its sum."""
_SIGNS: Final = frozenset({"=", "==", "!="})
_NOT_EMPTY: Final = re.compile(r"\[\[?\s+-[nz]\s")
_VARIABLE: Final = re.compile(r"\"?\$\{?(\w+)\}?\"?")


class Sides:
    """The sides of the comparisons of one script. `runs_agents`: whether a command under the wrapper starts a program of the agent's."""

    def __init__(self, root: Node, text: AgentText, runs_agents: Callable[[Node], bool]) -> None:
        self._text, self._nodes, self._runs_agents = text, [*every(root)], runs_agents
        self._values: dict[str, list[Node]] = {}
        for node in self._nodes:
            if node.type == "variable_assignment" and len(node.named_children) > 1:
                self._values.setdefault(source_of(node.named_children[0]), []).append(node.named_children[1])

    def are_own(self, node: Node) -> bool:
        """Whether a test compares a file of the agent's with another one, or with what its program prints, and no test knows either."""
        for sign, left, right in _compared(node):
            if not is_wanted(node, holds=sign != "!="):
                continue
            sides = [self._source(left), self._source(right)]
            files = [side for side in sides if side is not None and not side.startswith("$(")]
            if None in sides or not files or sides[0] == sides[1] or self._known.intersection(sides):
                continue
            if not any(file in str(side) for side in sides if side not in files for file in files):
                return True
        return False

    def are_outputs(self, node: Node) -> bool:
        """Whether a test compares two outputs of the agent's programs, and no other test is about the agent's text."""
        return self._has_outputs(node) and all(
            self._has_outputs(test) or _NOT_EMPTY.match(source) is not None
            for test, source in self._text.conditions
            if self._text.names_in(test)
        )

    def are_output_files(self, node: Node) -> bool:
        """Whether `cmp` or `diff` compares two files that hold outputs of the agent's programs alone, and nothing else of the script looks at
        either."""
        if not self._compares_outputs(node) or not is_wanted(node):
            return False
        others = (n for n in self._nodes if n.type in ("command", "case_statement"))
        return not any(may_look(n, self._text) and not self._compares_outputs(n) for n in others) and all(
            _NOT_EMPTY.match(source) is not None
            for test, source in self._text.conditions
            if self._text.names_in(test)
        )

    def _compares_outputs(self, node: Node) -> bool:
        found = words(node) if node.type == "command" and not self._text.wrapped(node) else []
        if not found or self._text.name(found[0]) not in ("cmp", "diff"):
            return False
        files = [self._text.text(file) for file in operands(found[1:])]
        return len(set(files)) == 2 and all(file in self._outputs for file in files)

    @cached_property
    def _outputs(self) -> frozenset[str]:
        """The files into which the script writes, and of it only programs of the agent's: `… ./prog > /tmp/a`, `cp out /tmp/a`, unless a program
        reads the copy: a round trip must give its input back."""
        written: dict[str, list[bool]] = {}
        for node in self._nodes:
            if node.type == "redirected_statement":
                of_agent = self._is_of_agent(node)
                for child in node.named_children:
                    if child.type == "file_redirect" and ">" in source_of(child) and child.named_children:
                        written.setdefault(self._text.text(child.named_children[-1]), []).append(of_agent)
            elif node.type == "command" and (found := words(node)):
                name, files = self._text.name(found[0]), operands(found[1:])
                if name in MOVES and len(files) == 2:
                    target = self._text.text(files[1])
                    written.setdefault(target, []).append(
                        self._is_own(files[0]) and target not in self._inputs
                    )
                elif name not in ("cmp", "diff"):  # it may write to a file that it names
                    for file in files:
                        if not self._text.wrapped(node) and name not in DATA:
                            written.setdefault(self._text.text(file), []).append(False)
        return frozenset(path for path, by_agent in written.items() if all(by_agent))

    @cached_property
    def _inputs(self) -> frozenset[str]:
        """The files that programs under the wrapper are given: as an operand, or on standard input."""
        found: set[str] = set()
        for node in self._nodes:
            wraps = node.type == "redirected_statement" and any(map(self._text.wrapped, _commands(node)))
            if wraps or (node.type == "command" and self._text.wrapped(node)):
                found |= {
                    self._text.text(child.named_children[-1] if child.type == "file_redirect" else child)
                    for child in node.named_children
                    if child.type != "file_redirect" or source_of(child).startswith("<")
                }
        return frozenset(found)

    def _is_of_agent(self, statement: Node) -> bool:
        commands = _commands(statement)
        own = all(self._text.wrapped(n) or source_of(n).startswith("cd ") for n in commands)
        return own and self._start_agents(commands) and "/tests/" not in source_of(statement)

    def _start_agents(self, commands: list[Node]) -> bool:
        """Whether there are commands under the wrapper, and all of them start programs of the agent's."""
        wrapped = [*filter(self._text.wrapped, commands)]
        return bool(wrapped) and all(self._runs_agents(n) and not self._runs_copy(n) for n in wrapped)

    def _runs_copy(self, command: Node) -> bool:
        """Whether the program is a copy of one of the tests': `cp /tests/ref.py /tmp`, then `… python3 /tmp/ref.py`."""
        started = started_by_wrapper(command, self._text)
        if started and self._text.name(started[0]) in INTERPRETERS:
            started = operands(started[1:])
        path = self._text.text(started[0]) if started else ""
        return path in self._text.copied and path.startswith("/") and not path.startswith("/app/")

    def _has_outputs(self, node: Node) -> bool:
        return any(
            all(re.match(r"\$\((?!.*/tests/)", self._source(side) or "", re.DOTALL) for side in sides)
            for _, *sides in _compared(node)
        )

    @cached_property
    def _known(self) -> frozenset[str | None]:
        """The files and programs of the agent's that the script compares with something else, too."""
        found = {
            posixpath.normpath(file.removeprefix("/app/"))
            for file, nodes in self._text.compared.items()
            if nodes
        }
        for node, _ in self._text.conditions:
            for _, left, right in _compared(node):
                own = [self._text.carries(left), self._text.carries(right)]
                if own.count(True) == 1:
                    found.add(self._source(left if own[0] else right) or "")
        return frozenset(found)

    def _source(self, node: Node, deep: int = 0) -> str | None:
        """The path of the agent's that a text is read from, or `$(…)` of its program; None for another text."""
        variable = _VARIABLE.fullmatch(source_of(node))
        if variable is not None:
            values = self._values.get(variable[1], [])
            return self._source(values[0], deep + 1) if len(values) == 1 and deep < 4 else None
        if node.type == "string" and len(node.named_children) == 1:
            node = node.named_children[0]
        if node.type != "command_substitution":
            return None
        commands = _commands(node)
        if any(map(self._text.wrapped, commands)):
            return source_of(node) if self._start_agents(commands) else None
        given = [words(command) for command in commands]
        if not all(found and self._text.name(found[0]) in _READS for found in given):
            return None
        places = [c for n in every(node) if n.type == "file_redirect" for c in n.named_children[-1:]]
        places += [a for found in given if self._text.name(found[0]) != "tr" for a in operands(found[1:])]
        files = [a for a in places if not self._text.text(a).isdigit() and self._is_own(a)]
        return (
            posixpath.normpath(self._text.text(files[0]).removeprefix("/app/")) if len(files) == 1 else None
        )

    def _is_own(self, word: Node) -> bool:
        path = self._text.text(word)
        if path.startswith(("$", "-", *JUDGES)) or posixpath.normpath(path) in self._text.made:
            return False
        return self._text.unsafe(word)


def _commands(node: Node) -> list[Node]:
    return [n for n in every(node) if n.type == "command"]


def _compared(node: Node) -> Iterator[tuple[str, Node, Node]]:
    """Sign and sides of the comparisons in `[ … ]` and `[[ … ]]`."""
    for inner in every(node):
        if inner.type == "binary_expression" and len(inner.children) == 3:
            left, sign, right = inner.children
            if source_of(sign) in _SIGNS:
                yield source_of(sign), left, right
