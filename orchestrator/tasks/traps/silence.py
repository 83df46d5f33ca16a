"""Tests of a script that only require that nothing wrong is shown: where the agent's file is missing or empty, nothing is."""

import re
from collections.abc import Set
from functools import cached_property
from itertools import chain
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.awk_lines import fails_by_line
from orchestrator.tasks.traps.commands import DATA, NAMED
from orchestrator.tasks.traps.exit_status import next_of, statement_of
from orchestrator.tasks.traps.integer_tests import errors_pass
from orchestrator.tasks.traps.jq_programs import holds_for_null, last_value_decides
from orchestrator.tasks.traps.launch import LAUNCHERS, words
from orchestrator.tasks.traps.paid_text import JUDGES
from orchestrator.tasks.traps.somewhere import (
    AWKS,
    GREPS,
    is_empty_file,
    is_required_empty,
    is_wanted,
    selects,
)
from orchestrator.tasks.traps.transforms import data_files
from orchestrator.tasks.traps.tree import above, every, operands, options, plain, source_of

_DIFFERS: Final = frozenset({"diff", "cmp", "comm"})
_DECIDES: Final = (
    _DIFFERS | GREPS | AWKS | {"jq", "sed", "expr", "md5sum", "sha1sum", "sha256sum", "sha512sum"}
)
_WITH_ERRORS: Final = re.compile(r"2>&1|&>|>&(?!\d)")
_EXISTS: Final = re.compile(r"(?:! )?-[defhrL] \S+(?: && (?:! )?-[defhrL] \S+)*")
_NOT_EMPTY: Final = re.compile(r"(?:! )?-[defhrsL] \S+(?: && (?:! )?-[defhrsL] \S+)*")
_IS_FILE: Final = re.compile(r"\s-[efr]\s")
_HOW_MANY: Final = re.compile(r"\$#|\$\{#\}")
_SETS_E: Final = re.compile(r"^\s*set\s+-\w*e|^#!.*\s-\w*e", re.MULTILINE)


class Silence:
    """The commands of one script whose silence is taken for success."""

    def __init__(self, root: Node, text: AgentText) -> None:
        self._root, self._text = root, text
        self._nodes = [*every(root)]
        self._looks_by: dict[re.Pattern[str], list[int]] = {}

    @property
    def decides(self) -> bool:
        """Whether a command of the script may decide by what the agent wrote, or by a program of the tests."""
        return bool(self._deciding)

    def passes(self, node: Node, name: str, arguments: list[Node]) -> bool:
        """Whether the tests require that this command shows nothing, as it does where the answer is nothing, and require nothing else."""
        if name in ("head", "tail"):
            return self._cuts_to_answer(node, arguments)
        if not self._is_silent(node, name, arguments):
            return False
        files = self._own(node, name, arguments) if name in _DIFFERS else []
        return not self._looks(files)

    def _cuts_to_answer(self, node: Node, arguments: list[Node]) -> bool:
        """`diff <(head -n "$(wc -l < out)" /tests/want) out`: as many expected lines as the answer has, and no other test of its length."""
        counts = [
            source_of(a)
            for word in arguments
            for a in every(word)
            if a.type in ("command_substitution", "simple_expansion") and self._counts_answer(a)
        ]
        files = [a for a in operands(arguments) if source_of(a) not in counts and not plain(a).isdigit()]
        if not counts or any(map(self.paths_of, files)) or not _is_compared(node):
            return False
        known = [source for test, source in self._text.conditions if not any(n == node for n in every(test))]
        return not any(
            re.search(r"\bwc\b", source) or any(c.strip('"') in source for c in counts) for source in known
        )

    def _counts_answer(self, node: Node, deep: int = 0) -> bool:
        if node.type == "simple_expansion":
            values = [
                n.named_children[1]
                for n in self._nodes
                if n.type == "variable_assignment" and len(n.named_children) > 1
                if source_of(n.named_children[0]) == source_of(node)[1:]
            ]
            return len(values) == 1 and deep < 4 and self._counts_answer(values[0], deep + 1)
        return re.search(r"\bwc\b", source_of(node)) is not None and bool(self.files_of(node))

    def _is_silent(self, node: Node, name: str, arguments: list[Node]) -> bool:
        if name in _DIFFERS:
            return self._hides_missing(name, arguments) and self._no_output(node, name)
        if name in GREPS:
            return self._reads_own(node, name, arguments) and (
                is_wanted(node, holds=False) if _substituted(node) is None else self._no_output(node, name)
            )
        if _substituted(node) is None and (
            fails_by_line(name, arguments)
            if name in AWKS
            else _holds_for_all(name, arguments) or holds_for_null(name, arguments)
        ):
            used = self._has_condition(node) and is_wanted(node)
            return used and self._reads_own(node, name, arguments)
        return (
            selects(name, arguments)
            and self._reads_own(node, name, arguments)
            and self._no_output(node, name)
        )

    def _no_output(self, node: Node, name: str) -> bool:
        """Whether the tests require that a command printed nothing, or that its exit status is not 1, which it has for an error, too."""
        around = _substituted(node)
        if around is None:
            if name in ("diff", "cmp") and errors_pass(node, self._text):
                return True
            written = next((a for a in above(node) if a.type == "redirected_statement"), node)
            return not _WITH_ERRORS.search(source_of(written)) and is_empty_file(node, self._text)
        if _WITH_ERRORS.search(source_of(around)):
            return False
        ends = (
            around.parent is not None and around.parent.type == "variable_assignment" and self._ends_at_errors
        )
        return not ends and is_required_empty(around, self._text)

    @cached_property
    def _ends_at_errors(self) -> bool:
        return _SETS_E.search(source_of(self._root)) is not None

    def _hides_missing(self, name: str, arguments: list[Node]) -> bool:
        """Whether `diff`, `cmp` or `comm` prints nothing if the agent's file is missing, or empty."""
        files = operands(arguments)
        own = [self.paths_of(file) for file in files]
        if len(files) != 2 or all(own) or not any(own):
            return False
        fed = [file.type == "process_substitution" for file in files]
        if name == "diff":
            absent = any(plain(a) in ("-N", "--new-file") for a in arguments)
            return not absent and any(
                bool(paths) and not inner for paths, inner in zip(own, fed, strict=True)
            )
        if name == "cmp":
            return True  # "EOF on out" is an error message
        if any(bool(paths) and not inner for paths, inner in zip(own, fed, strict=True)):
            return True
        return self._every_comm_hides_missing

    @cached_property
    def _every_comm_hides_missing(self) -> bool:
        """Whether no `comm` of the script shows the lines that only the expected file has."""
        found = [w for n in self._nodes if n.type == "command" and (w := words(n)) and plain(w[0]) == "comm"]
        return all(
            str(at) in options(given[1:])
            for given in found
            for at, file in enumerate(operands(given[1:]), 1)
            if not self.paths_of(file)
        )

    def _own(self, node: Node, name: str, arguments: list[Node]) -> list[str]:
        return [path for file in self._data(node, name, arguments) for path in self.paths_of(file)]

    def _data(self, node: Node, name: str, arguments: list[Node]) -> list[Node]:
        by_file = (
            name in GREPS and re.search(r"(?:^|\s)-\w*[fe]\s", " ".join(map(plain, arguments))) is not None
        )
        files = operands(arguments)[1:] if by_file else data_files(name, arguments)
        redirects = [
            c for a in (node, *above(node)) if a.type == "redirected_statement" for c in a.named_children
        ]
        return [
            *files,
            *(c.named_children[-1] for c in redirects if source_of(c).startswith("<") and c.named_children),
        ]

    def _reads_own(self, node: Node, name: str, arguments: list[Node]) -> bool:
        return bool(self._own(node, name, arguments)) or self._text.stdin(node) is not None

    def paths_of(self, word: Node) -> list[str]:
        """The files of the agent's that a word names, or that a process substitution reads."""
        if word.type == "process_substitution":
            inner = [n for n in every(word) if n.type == "command"]
            found = [a for n in inner if (w := words(n)) for a in data_files(self._text.name(w[0]), w[1:])]
            found += [
                n.named_children[-1] for n in every(word) if n.type == "file_redirect" and n.named_children
            ]
            return [path for a in found if a.type != "process_substitution" for path in self.paths_of(a)]
        path = self._text.text(word)
        kept = path.startswith(("$", "-", *JUDGES)) or path in self._text.made or path.isdigit()
        return [path] if not kept and self._text.unsafe(word) else []

    def _looks(self, files: list[str]) -> bool:
        """Whether something else of the script may test these files, or, without files, anything that the agent wrote."""
        for _, own, any_of_agent in self._tested:
            if (not files and any_of_agent) or own & set(files):
                return True
        return any(not own or not files or own & set(files) for _, own in self._deciding)

    def last_passes(self, node: Node, name: str, arguments: list[Node]) -> bool:
        """`jq -e '.[] | . == 42' out`, where nothing else looks at the number of values, or at the whole file."""
        last = last_value_decides(node, name, arguments) and self._reads_own(node, name, arguments)
        return last and not self.looks_outside(node, weak=_NOT_EMPTY)

    def looks_outside(
        self, part: Node, places: Set[str] = frozenset(), *, weak: re.Pattern[str] = _EXISTS
    ) -> bool:
        """Whether something else than a part of the script may test what the agent wrote, and not only that it is there.

        `places`: names of the directories whose files this part tests. That one of these files is there, or how many there are (`$#`), is a test.
        `weak`: the conditions that are no test.
        """
        required = (node.start_byte for node, own, _ in self._tested if _requires_files(node, own, places))
        looks = chain(self._looking(weak), required if places else ())
        return any(not part.start_byte <= at < part.end_byte for at in looks)

    def _looking(self, weak: re.Pattern[str]) -> list[int]:
        """The first and the last place at which the script looks at what the agent wrote."""
        if weak not in self._looks_by:
            found = [
                node
                for node, _, of_agent in self._tested
                if of_agent and not weak.fullmatch(_condition(node))
            ]
            found += [node for node, _ in self._deciding] + self._compared
            places = [node.start_byte for node in found]
            self._looks_by[weak] = [min(places), max(places)] if places else []
        return self._looks_by[weak]

    @cached_property
    def _compared(self) -> list[Node]:
        """The comparisons on whose status something depends, also in a way that `is_wanted` does not see: `cmp out /tests/want || exit 0`."""
        given = ((n, words(n)) for n in self._nodes if n.type == "command" and _substituted(n) is None)
        named = [n for n, found in given if found and self._text.name(found[0]) in _DECIDES]
        return [n for n in named if self._has_condition(n)]

    @cached_property
    def _tested(self) -> list[tuple[Node, set[str], bool]]:
        """Every condition that requires more than silence: the agent's files that it is about, and whether it is about the agent's text."""
        values: dict[str, set[str]] = {}
        silent = set()
        for node in self._nodes:
            if node.type == "variable_assignment" and len(node.named_children) > 1:
                name = source_of(node.named_children[0])
                values.setdefault(name, set()).update(self.files_of(node.named_children[1]))
                if self._holds_silence(node):
                    silent.add(name)
        found = []
        for test, _ in self._text.conditions:
            variables = {source_of(n) for n in every(test) if n.type == "variable_name"}
            if not variables & silent and not self._holds_silence(test):
                own = self.files_of(test).union(*(values.get(name, ()) for name in variables))
                found.append((test, own, bool(own) or self._text.names_in(test)))
        return found

    @cached_property
    def _deciding(self) -> list[tuple[Node, set[str]]]:
        """Every command that may decide by more than its silence, with the agent's files that it reads; none for a program of the tests."""
        found: list[tuple[Node, set[str]]] = []
        for node in self._nodes:
            if node.type == "case_statement" and self._text.carries(node.named_children[0]):
                found.append((node, set()))
            given = words(node) if node.type == "command" else []
            if given and plain(given[0]) not in _DIFFERS and self._text.wrapped(node):
                continue
            if not given or _substituted(node) is not None:
                continue
            name = self._text.name(given[0])
            if name in self._text.functions:
                continue  # its body is read where it stands
            if name in _DECIDES:
                own = set(self._own(node, name, given[1:]))
                fed = bool(own) or name in _DIFFERS or self._text.stdin(node) is not None
                if fed and self._decides(node, name, given[1:]):
                    found.append((node, own))
            elif name not in DATA | NAMED | LAUNCHERS.keys() or name in ("source", "."):
                found.append((node, set()))
        return found

    def files_of(self, node: Node) -> set[str]:
        """The agent's files that a part of the script names."""
        kinds = ("word", "string", "raw_string", "concatenation")
        return {path for n in every(node) if n.type in kinds for path in self.paths_of(n)}

    def _decides(self, node: Node, name: str, arguments: list[Node]) -> bool:
        inside = any(a.type == "process_substitution" for a in above(node))
        return (
            not (inside or self._is_silent(node, name, arguments))
            and self._has_condition(node)
            and is_wanted(node)
        )

    def _has_condition(self, node: Node) -> bool:
        """Whether the exit status of a command is used: by a list, an `if`, `$?` or `set -e`."""
        after = next_of(statement_of(node))
        types = {a.type for a in above(node)} & {"list", "if_statement", "elif_clause", "negated_command"}
        used = bool(types) or self._ends_at_errors or _is_last(node)
        return used or (after is not None and "$?" in source_of(after))

    def _holds_silence(self, node: Node) -> bool:
        """Whether a condition, or the value of a variable, has the output of a command that is required to be silent."""
        commands = [n for n in every(node) if n.type == "command" and _substituted(n) is not None]
        return any(
            self._is_silent(n, self._text.name(given[0]), given[1:]) for n in commands if (given := words(n))
        )


def _condition(test: Node) -> str:
    """`-f out` for `[ -f out ]`."""
    return source_of(test).removeprefix("test").strip("[] ")


def _requires_files(test: Node, own: set[str], places: Set[str]) -> bool:
    """Whether a condition is about the number of files, or tests that files of these directories are there."""
    below = any(not place or place in path.split("/")[:-1] for path in own for place in places)
    return (bool(places) and _HOW_MANY.search(source_of(test)) is not None) or (
        below and _IS_FILE.search(source_of(test)) is not None
    )


def _holds_for_all(name: str, arguments: list[Node]) -> bool:
    """`jq -e 'all(.[]; .ok)' out`: true for `[]`, too."""
    program = plain(given[0]) if (given := operands(arguments)) else ""
    every_one = re.search(r"\ball\b", program) is not None and "length" not in program
    return name == "jq" and "e" in options(arguments) and every_one


def _is_compared(node: Node) -> bool:
    """Whether the output of a command is one side of `cmp`, `diff` or a test."""
    pipeline = next((a for a in above(node) if a.type == "pipeline"), None)
    around = [words(a) for a in above(node) if a.type == "command"]
    around += [words(n) for n in (every(pipeline) if pipeline is not None else ()) if n.type == "command"]
    return any(found and plain(found[0]) in _DIFFERS for found in around) or any(
        a.type == "test_command" for a in above(node)
    )


def _substituted(node: Node) -> Node | None:
    return next((a for a in above(node) if a.type == "command_substitution"), None)


def _is_last(node: Node) -> bool:
    """Whether a command is the last one of a function, so that its status is the function's."""
    statement = statement_of(node)
    around = statement.parent
    return around is not None and around.type == "compound_statement" and next_of(statement) is None
