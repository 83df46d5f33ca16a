"""The rules for a bash script: one reading of its tree, in which each kind of node has its rules."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import POSITIONAL, AgentText
from orchestrator.tasks.traps.as_many import AsMany
from orchestrator.tasks.traps.command_rules import Commands
from orchestrator.tasks.traps.comparisons import in_case, in_old_test, in_test
from orchestrator.tasks.traps.draws import draws_in_shell
from orchestrator.tasks.traps.elapsed import NOTE, Elapsed
from orchestrator.tasks.traps.exit_status import Statuses
from orchestrator.tasks.traps.fixed_text import NO_VARIABLES
from orchestrator.tasks.traps.integer_tests import IntegerTests
from orchestrator.tasks.traps.interpreters import inline_programs
from orchestrator.tasks.traps.launch import FOUND, base, found_for, shell_texts, stages
from orchestrator.tasks.traps.launch import words as launched
from orchestrator.tasks.traps.links import Links
from orchestrator.tasks.traps.lost_status import LostStatus
from orchestrator.tasks.traps.named_files import NamedFiles
from orchestrator.tasks.traps.own_sides import Sides
from orchestrator.tasks.traps.own_word import pays_agent_text, started_by_wrapper
from orchestrator.tasks.traps.paid_text import PaidText
from orchestrator.tasks.traps.programs import search_path
from orchestrator.tasks.traps.read_only import writes_below_tests
from orchestrator.tasks.traps.rules import Rule, Trap
from orchestrator.tasks.traps.shared_input import SharedInput
from orchestrator.tasks.traps.silence import Silence
from orchestrator.tasks.traps.somewhere import in_loop
from orchestrator.tasks.traps.tree import every, parse, plain, source_of
from orchestrator.tasks.traps.variables import integers, names_agent_text

_MAX_DEPTH: Final = 4
ReadPython = Callable[[str, str, frozenset[str], int], list[Trap]]
"""The traps of Python in a script, from file, source, the agent's modules and the line of the script at which it begins."""


class Reading:
    """The analysis of one script. A script in a script (`bash -c '…'`) has a reading of its own, with the variables of the one around it."""

    def __init__(
        self,
        text: str,
        *,
        modules: frozenset[str],
        functions: frozenset[str],
        python: ReadPython | None = None,
        inherited: frozenset[str] = frozenset(),
        variables: Mapping[str, str] = NO_VARIABLES,
        deep: int = 0,
    ) -> None:
        self._root, self._modules, self._deep, self._python = parse(text), modules, deep, python
        self._variables = variables
        self._text, self._numbers = AgentText(self._root, inherited, variables), integers(self._root)
        self._paid = PaidText(self._root, inherited) if "reward" in text else None
        self._links = Links(self._root, self._text)
        self._functions = functions | self._text.functions.keys()
        self._input = SharedInput(self._root)
        self._statuses = Statuses(self._root, self._text)
        integers_of = IntegerTests(self._root, self._text)
        self._without_number = {
            n.id for n, source in self._text.conditions if integers_of.pass_without_number(n, source)
        }
        self._lost, self._elapsed = LostStatus(self._root, self._text), Elapsed(self._root, self._text)
        self._silence = Silence(self._root, self._text)
        self._named = NamedFiles(self._root, self._text)
        self._as_many = AsMany(self._root, self._text, self._silence)
        self._commands = Commands(self._root, self._text, links=self._links, functions=self._functions)
        self._sides = Sides(self._root, self._text, self._runs_agents)
        self._rules: Mapping[str, Callable[[Node], Iterator[Rule]]] = {
            "command": self._command,
            "test_command": self._test,
            "case_item": lambda node: in_case(node, self._text),
            "file_redirect": self._redirect,
            "for_statement": self._loop,
            "while_statement": self._loop,
        }

    def found(self) -> dict[tuple[int, Rule], str]:
        """Line and rule of every trap, with its note."""
        found: dict[tuple[int, Rule], str] = {}
        for node in every(self._root):
            line = node.start_point[0] + 1
            rules = [
                *self._calculates(node),
                *search_path(node, self._text),
                *(self._rules[node.type](node) if node.type in self._rules else ()),
            ]
            if self._paid is not None and pays_agent_text(node, self._paid):
                rules.append(Rule.PAID)
            if node.id in self._without_number:
                rules.append(Rule.NOT_A_NUMBER)
            if self._named.reads(node):
                rules.append(Rule.NAMED_FILE)
            if self._lost.decides(node):
                rules.append(Rule.LOST_STATUS)
            if draws_in_shell(node):
                rules.append(Rule.DRAWS)
            if writes_below_tests(node, self._text):
                rules.append(Rule.READ_ONLY)
            if node.type == "ERROR" or node.is_missing:
                rules.append(Rule.UNREADABLE)
            found |= {(line, rule): "" for rule in rules}
            if self._elapsed.decides(node):
                found[(line, Rule.STATUS)] = NOTE
            if node.type == "command" and not self._text.wrapped(node):
                found |= self._inside(node)
        return found

    def _inside(self, node: Node) -> dict[tuple[int, Rule], str]:
        """Programs in the script: texts that a shell reads, Python in `python3 -c '…'` and in here-documents."""
        found: dict[tuple[int, Rule], str] = {}
        own = self._text.finds_own(node)
        for words in [*stages(node), *chain.from_iterable(found_for(node))]:
            for text in shell_texts(words):
                first = text.start_point[0] + 1
                if self._text.carries(text):
                    found[(first, Rule.PROGRAM_TEXT)] = ""
                elif self._deep < _MAX_DEPTH:
                    names = set(self._text.names)
                    given = [word for word in words if word.start_byte > text.start_byte]
                    if any(self._text.carries(word) or (own and plain(word) == FOUND) for word in given):
                        names |= POSITIONAL
                    body = (
                        plain(text)
                        if text.type == "raw_string"
                        else re.sub(r'\\([\\"$`])', r"\1", plain(text))
                    )
                    inner = Reading(
                        body,
                        modules=self._modules,
                        functions=self._functions,
                        python=self._python,
                        inherited=frozenset(names),
                        variables=self._variables,
                        deep=self._deep + 1,
                    )
                    found |= {(line + first - 1, rule): note for (line, rule), note in inner.found().items()}
        for source, first in inline_programs(node, self._text):
            traps = [] if self._python is None else self._python("", source, self._modules, first)
            found |= {(trap.line, trap.rule): trap.note for trap in traps}
        return found

    def _calculates(self, node: Node) -> Iterator[Rule]:
        arithmetic = node.type in ("arithmetic_expansion", "subscript") or (
            node.type == "compound_statement" and source_of(node).startswith("((")
        )
        if arithmetic:
            body = node.named_children[1:] if node.type == "subscript" else node.named_children
            if any(self._text.names_in(child) for child in body):
                yield Rule.ARITHMETIC
        elif node.type == "c_style_for_statement":
            if any(self._text.names_in(child) for child in node.named_children if child.type != "do_group"):
                yield Rule.ARITHMETIC
        elif names_agent_text(node, self._text, self._numbers):
            yield Rule.ARITHMETIC
        elif node.type == "expansion" and source_of(node).endswith("@P}") and self._text.carries(node):
            yield Rule.PROGRAM_TEXT

    def _test(self, node: Node) -> Iterator[Rule]:
        yield from in_test(node, self._text)
        if self._sides.are_own(node) or (self._sides.are_outputs(node) and not self._silence.decides):
            yield Rule.BOTH_SIDES
        if self._as_many.count_passes(node):
            yield Rule.EMPTY

    def _loop(self, node: Node) -> Iterator[Rule]:
        found = [*in_loop(node, self._text)]
        yield from found
        if not found and self._as_many.loop_passes(node):
            yield Rule.EMPTY

    def _command(self, node: Node) -> Iterator[Rule]:
        if self._text.wrapped(node):
            if self._runs_agents(node) and self._statuses.decide(node):
                yield Rule.STATUS
            if self._input.reaches_wrapped(node):
                yield Rule.INPUT
            return
        words = [child for child in node.named_children if child.type != "variable_assignment"]
        if words and base(words[0]) in ("[", "test"):
            yield from in_old_test(node, words[1:], self._text)
        rules = [*self._commands.rules(node)]
        yield from rules
        if self._sides.are_output_files(node):
            yield Rule.BOTH_SIDES
        found = launched(node)
        if found and self._silence.passes(node, self._text.name(found[0]), found[1:]):
            yield Rule.EMPTY
        if found and self._silence.last_passes(node, self._text.name(found[0]), found[1:]):
            yield Rule.SOMEWHERE
        if {Rule.AGENT_PROGRAM, Rule.BUILD_TOOL} & set(rules) and self._input.reaches(node):
            yield Rule.INPUT

    def _runs_agents(self, node: Node) -> bool:
        """Whether a command under the wrapper starts a program of the agent's: a reference has the same limits there."""
        return self._commands.runs_agents(node, started_by_wrapper(node, self._text))

    def _redirect(self, node: Node) -> Iterator[Rule]:
        if self._links.redirected(node, ran=self._commands.ran_before(node)):
            yield Rule.LINKS


def rules_of_line(line: str, agent: frozenset[str]) -> set[Rule]:
    """The rules that one command breaks if these variables carry agent text."""
    found = Reading(line, modules=frozenset(), functions=frozenset(), inherited=agent).found()
    return {rule for _, rule in found} - {Rule.UNREADABLE, Rule.LINKS}
