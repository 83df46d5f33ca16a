"""Scripts in which the exit status of the agent's own program decides: at once, by `$?`, or since the script ends where the program fails."""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.commands import BLIND, DATA, NAMED
from orchestrator.tasks.traps.fixed_text import WRAPPER
from orchestrator.tasks.traps.launch import LAUNCHERS, words
from orchestrator.tasks.traps.paid_text import is_reward
from orchestrator.tasks.traps.somewhere import AWKS, decides
from orchestrator.tasks.traps.tree import above, every, operands, plain, source_of

_CONDITIONS: Final = frozenset(
    {"if_statement", "elif_clause", "case_item", "while_statement", "for_statement"}
)
_CAPTURES: Final = frozenset({"command_substitution", "process_substitution", "pipeline"})
_ZERO: Final = re.compile(
    r"(?:\[\[?|\(\()\s*[\"']?\$?\{?(\w+|\?)\}?[\"']?\s*(==?|-eq|!=|-ne|-gt|>)\s*[\"']?0[\"']?\s*(?:\]\]?|\)\))"
)
_KEPT: Final = re.compile(r"[\"']?\$\{?\?\}?[\"']?")
_TURNED: Final = re.compile(
    r"\$\(\(\s*(?:!\s*\(?\s*\$?(\w+|\?)\s*\)?|\$?(\w+|\?)\s*==\s*0(?:\s*\?\s*1\s*:\s*0)?|1\s*-\s*\$?(\w+|\?))\s*\)\)"
)
_PAYS: Final = re.compile(r"1(?:\.0+)?(?:\\n)?|.*reward[\"\\]*\s*:\s*1(?:\.0+)?\s*}.*")
_ERREXIT: Final = re.compile(r"-\w*e\w*|errexit")
_READS_SCRIPTS: Final = frozenset({"source", ".", "eval"})


class Statuses:
    """The exit statuses of one script's programs under the wrapper."""

    def __init__(self, root: Node, text: AgentText) -> None:
        self._root, self._text = root, text

    def decide(self, node: Node) -> bool:
        """Whether success of this command alone, under no other condition, is success of the tests: `… ./prog && ok=1`, `… || exit 1`."""
        if any(a.type in _CAPTURES for a in above(node)):
            return False
        if _by_itself(node):
            return True
        if self._compares_work:
            return False
        return any(self.succeeds(*found) for found in self._tests(node)) or self._is_turned(node)

    @cached_property
    def _compares_work(self) -> bool:
        """Whether the script, or a program that it starts, may compare what the agent wrote or printed."""
        tests = any(self._text.names_in(node) for node, _ in self._text.conditions)
        return tests or any(map(self._may_compare, every(self._root)))

    def _may_compare(self, node: Node) -> bool:
        if node.type == "case_statement":
            return self._text.carries(node.named_children[0])
        found = words(node) if node.type == "command" and not self._text.wrapped(node) else []
        if not found:
            return False
        name, files = self._text.name(found[0]), operands(found[1:])
        if name in self._text.functions:
            return False  # its body is read where it stands
        if name in DATA | NAMED and name not in BLIND | _READS_SCRIPTS:
            return self._text.stdin(node) is not None or any(
                self._text.unsafe(f) or self._text.carries(f) for f in files
            )
        return name not in BLIND | LAUNCHERS.keys()

    def _tests(self, node: Node) -> Iterator[tuple[Node, bool]]:
        """The command, and the tests of its status: whether each holds after success."""
        yield node, True
        statement = statement_of(node)
        after = next_of(statement)
        first = next((n for n in every(after) if n.type == "command" or is_test(n)), None) if after else None
        for test, source in self._text.conditions:
            found = _ZERO.fullmatch(source)
            if found and (test == first if found[1] == "?" else found[1] in self._kept(statement)):
                yield test, found[2] in ("=", "==", "-eq")

    def _kept(self, statement: Node) -> set[str]:
        """The variables that keep the status: `… ./prog; rc=$?`, `… ./prog || rc=$?`."""
        after = next_of(statement)
        places = [*statement.named_children[1:]] if statement.type == "list" else []
        return {
            source_of(node.named_children[0])
            for node in [*places, *([] if after is None else [after])]
            if node.type == "variable_assignment"
            and len(node.named_children) > 1
            and _KEPT.fullmatch(source_of(node.named_children[1]))
        }

    def succeeds(self, node: Node, holds: bool) -> bool:
        """Whether the tests succeed if a condition is as after success, and fail else. `holds`: the condition after success."""
        good: list[Node] = []
        bad: list[Node] = []
        child = node
        for ancestor in above(node):
            if ancestor.type == "negated_command":
                holds = not holds
            elif ancestor.type == "list":
                first, last = ancestor.named_children[0], ancestor.named_children[-1]
                also = any(c.type == "&&" for c in ancestor.children)
                if child == first:
                    (good if also == holds else bad).append(last)
                elif not (also and _only_runs(first)):
                    return False
            elif ancestor.type == "if_statement":
                condition, *branches = ancestor.named_children
                if condition != child or any(b.type == "elif_clause" for b in branches):
                    return False
                for branch in branches:
                    (bad if (branch.type == "else_clause") == holds else good).append(branch)
                child = ancestor
                break
            elif ancestor.type != "redirected_statement":
                break
            child = ancestor
        if any(decides(n) or self._pays(n) for n in _all_unconditional(good)):
            return True
        if child.parent is None or child.parent.type != "program":
            return False
        ends = any(_is_exit(n) for n in _all_unconditional(bad))
        stops = not good and not bad and holds and self.stops_at_failure(node)
        return (ends or stops) and self.pays_after(child)

    def stops_at_failure(self, node: Node) -> bool:
        """Whether `set -e` holds here."""
        sets = [
            (n, words(n))
            for n in every(self._root)
            if n.type == "command" and n.end_byte <= node.start_byte and plain(n.named_children[0]) == "set"
        ]
        found = False
        for _, given in sets:
            for word in map(plain, given[1:]):
                found = found or _ERREXIT.fullmatch(word) is not None
                found = found and not re.fullmatch(r"\+\w*e\w*", word)
        return found or re.match(r"#!.*\s-\w*e", source_of(self._root)) is not None

    def pays_after(self, statement: Node) -> bool:
        """Whether the script pays behind a statement, without another condition."""
        after = next_of(statement)
        while after is not None:
            if any(map(self._pays, _unconditional(after))):
                return True
            after = next_of(after)
        return False

    def _pays(self, node: Node) -> bool:
        """`echo 1 > /logs/verifier/reward.txt`, `echo $ok > …` after `ok=1`."""
        if node.type != "redirected_statement" or node.named_children[0].type != "command":
            return False
        found = words(node.named_children[0])
        target = next((c for c in node.named_children if c.type == "file_redirect"), None)
        if target is None or not found or plain(found[0]) not in ("echo", "printf"):
            return False
        value = " ".join(map(plain, operands(found[1:])))
        return is_reward(target.named_children[-1], self._text) and (
            _PAYS.fullmatch(value) is not None or self._is_one(value)
        )

    def _is_one(self, value: str) -> bool:
        name = re.fullmatch(r"\$\{?(\w+)\}?", value)
        return name is not None and any(
            n.type == "variable_assignment"
            and re.fullmatch(rf"{name[1]}=[\"']?1(?:\.0+)?[\"']?", source_of(n))
            for child in self._root.named_children
            for n in _unconditional(child)
        )

    def _is_turned(self, node: Node) -> bool:
        """`echo $((! $?)) > /logs/verifier/reward.txt`"""
        statement = statement_of(node)
        after, kept = next_of(statement), self._kept(statement)
        while after is not None:
            for found in _TURNED.finditer(source_of(after)):
                name = found[1] or found[2] or found[3]
                if name in kept or (name == "?" and after == next_of(statement)):
                    return True
            after = next_of(after)
        return False


def may_look(node: Node, text: AgentText) -> bool:
    """Whether a command may check what the agent wrote or printed, whatever it reads; `bc` and an awk without files calculate."""
    if node.type == "case_statement":
        return True
    found = words(node) if node.type == "command" and not text.wrapped(node) else []
    name = text.name(found[0]) if found else "bc"
    if name in text.functions or name == "bc":
        return False  # the body of a function is read where it stands
    if name in AWKS:
        return len(operands(found[1:])) > 1 or text.stdin(node) is not None
    return name not in BLIND | LAUNCHERS.keys()


def _by_itself(node: Node) -> bool:
    """`… ./prog && ok=1`, `if … ./prog; then ok=1; fi`"""
    child = node
    for ancestor in above(node):
        if ancestor.type == "list":
            *conditions, last = ancestor.named_children
            signs = {c.type for c in ancestor.children} & {"&&", "||"}
            if signs != {"&&"} or not all(c == child or _only_runs(c) for c in conditions):
                return False
            if last != child and any(map(decides, _unconditional(last))):
                return True
            if last != child and not _only_runs(last):
                return False
        elif ancestor.type == "if_statement":
            condition, *then = ancestor.named_children
            body = [c for c in then if c.type not in ("elif_clause", "else_clause")]
            return condition == child and any(map(decides, _all_unconditional(body)))
        elif ancestor.type != "redirected_statement":
            return False
        child = ancestor
    return False


def _only_runs(node: Node) -> bool:
    """Whether a condition only runs programs under the wrapper, or goes to a directory."""
    return all(
        WRAPPER in source_of(n) or plain(n.named_children[0]) in ("cd", "true")
        for n in every(node)
        if n.type in ("command", "test_command") and n.named_children
    )


def _unconditional(node: Node) -> Iterator[Node]:
    yield node
    if node.type not in _CONDITIONS and node.type != "list":
        for child in node.named_children:
            yield from _unconditional(child)


def _all_unconditional(nodes: list[Node]) -> Iterator[Node]:
    for node in nodes:
        yield from _unconditional(node)


def statement_of(node: Node) -> Node:
    """The statement that a command is, or that it ends: `cd src && … ./prog > /tmp/log`."""
    for ancestor in above(node):
        if ancestor.type not in ("redirected_statement", "list"):
            break
        node = ancestor
    return node


def next_of(node: Node) -> Node | None:
    """The statement behind a statement."""
    after = node.next_named_sibling
    while after is not None and after.type in ("comment", "else_clause", "elif_clause"):
        after = after.next_named_sibling
    return after


def is_test(node: Node) -> bool:
    """Whether a statement is `[ … ]`, `[[ … ]]` or `(( … ))`."""
    return node.type == "test_command" or (
        node.type == "compound_statement" and source_of(node).startswith("((")
    )


def _is_exit(node: Node) -> bool:
    found = words(node) if node.type == "command" else []
    return bool(found) and plain(found[0]) == "exit"
