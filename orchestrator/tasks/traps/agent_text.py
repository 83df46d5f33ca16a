"""Finds the variables and substitutions of a script that carry text chosen by the agent.

The analysis is by name, not by flow: a variable that holds agent text at any point counts as agent text everywhere. Numbers that the judge counts
itself (`wc`, `grep -c`, `stat`) are not agent text.
"""

import posixpath
import re
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.commands import INTERPRETERS, PROGRAM_FIRST
from orchestrator.tasks.traps.fixed_text import NO_VARIABLES, FixedText
from orchestrator.tasks.traps.launch import stages, words
from orchestrator.tasks.traps.tree import (
    SAFE,
    above,
    every,
    is_safe,
    listed,
    operands,
    options,
    plain,
    source_of,
)

ANSWER: Final = "PENSTOCK_ANSWER"
_OWN: Final = listed(
    "echo printf seq date expr mktemp shuf true id nproc sleep cd mkdir tr test [ which command type"
)
_COUNTS: Final = frozenset({"wc", "stat"})
_LISTS: Final = frozenset({"ls", "git", "make"})
MOVES: Final = frozenset({"cp", "mv", "ln", "install"})
_BRACES: Final = re.compile(r"\$\{(\w+)\}")
_FIRST: Final = re.compile(r"\$\{?(\w+)")
_DIRECTORY: Final = re.compile(r"mktemp\b[^)]{0,200}?\s-(?:\w*d|-directory)")
_OUTPUT: Final = re.compile(r"[\d&\s]*>(?!&)")
POSITIONAL: Final = frozenset({*"0123456789", "@", "*"})


class AgentText(FixedText):
    """The variables of a script that carry agent text. `inherited`: those of the script around it. `variables` as for `FixedText`."""

    def __init__(
        self,
        root: Node,
        inherited: frozenset[str] = frozenset(),
        variables: Mapping[str, str] = NO_VARIABLES,
    ) -> None:
        self.names: set[str] = set(inherited)
        self.called: set[str] = set()
        super().__init__(root, variables)
        self._redirected_for_all = [
            child
            for n in self._nodes
            if n.type == "redirected_statement" and source_of(n.named_children[0]) == "exec"
            for child in n.named_children
            if child.type == "file_redirect" and source_of(child).startswith("<")
        ]
        made = {
            source_of(n.named_children[0]): source_of(n.named_children[-1])
            for n in self._nodes
            if n.type == "variable_assignment" and "mktemp" in source_of(n.named_children[-1])
        }
        self._temporary = {"TMPDIR"} | made.keys()
        self._directories = {"$TMPDIR"} | {f"${name}" for name, how in made.items() if _DIRECTORY.search(how)}
        self._placed: set[str] = set()
        before = -1
        while before != (before := len(self.names) + len(self.called) + len(self._placed)):
            for node in self._nodes:
                self._learn(node)

    @cached_property
    def made(self) -> frozenset[str]:
        """The files that the script itself writes: by a redirection, or as a copy of a file that is not the agent's."""
        return self.copied | {
            self.text(node.named_children[-1])
            for node in self._nodes
            if node.type == "file_redirect" and source_of(node).lstrip("0123456789&").startswith(">")
        }

    @cached_property
    def copied(self) -> frozenset[str]:
        """The copies that the script makes of files that are not the agent's."""
        found: set[str] = set()
        for node in self._nodes:
            if node.type == "command" and (given := words(node)) and self.name(given[0]) in MOVES:
                *sources, target = operands(given[1:]) or given[:1]
                if sources and not any(map(self.unsafe, sources)):
                    place = self.text(target)
                    names = (posixpath.basename(self.text(source)) for source in sources)
                    found |= {place, *(posixpath.normpath(posixpath.join(place, name)) for name in names)}
        return frozenset(found)

    @cached_property
    def compared(self) -> dict[str, list[Node]]:
        """The commands in which `cmp` or `diff` compares a file with one that is not the agent's, by the path of each."""
        found: dict[str, list[Node]] = {}
        for node in self._nodes:
            given = words(node) if node.type == "command" else []
            files = operands(given[1:]) if given and self.name(given[0]) in ("cmp", "diff") else []
            if len(files) == 2 and not all(map(self.unsafe, files)):
                for file in files:
                    found.setdefault(self.text(file), []).append(node)
        return found

    @cached_property
    def every_comm_hides(self) -> bool:
        """Whether no `comm` of the script shows the lines that only the agent's file has."""
        given = [words(node) for node in self._nodes if node.type == "command"]
        return all(self.hides(found[1:]) for found in given if found and plain(found[0]) == "comm")

    def hides(self, arguments: list[Node]) -> bool:
        """Whether a `comm` with these arguments shows no lines that only the agent's file has."""
        files, hidden = operands(arguments), options(arguments)
        own = [self.unsafe(a) or self.carries(a) for a in files]
        named = [str(at) for at, is_own in enumerate(own, 1) if is_own]
        return len(own) == 2 and bool(named) and all(column in hidden for column in named)

    @cached_property
    def conditions(self) -> list[tuple[Node, str]]:
        """Every `[ … ]`, `[[ … ]]`, `test …` and `(( … ))` of the script, with its text between brackets."""
        found: list[tuple[Node, str]] = []
        for node in self._nodes:
            source = source_of(node) if node.type in ("test_command", "compound_statement", "command") else ""
            if node.type == "test_command" or (node.type == "compound_statement" and source.startswith("((")):
                found.append((node, source))
            elif node.type == "command" and source.startswith("test "):
                found.append((node, f"[ {source[5:]} ]"))
        return found

    @cached_property
    def sources_of_conditions(self) -> dict[int, str]:
        """The texts of `conditions`, by the id of the node."""
        return {node.id: source for node, source in self.conditions}

    def carries(self, node: Node) -> bool:
        """Whether the text of a node holds agent text."""
        for inner in every(node):
            if inner.type in ("simple_expansion", "expansion"):
                if source_of(inner).startswith("${#"):
                    continue
                name = next(
                    (
                        source_of(c)
                        for c in inner.named_children
                        if c.type in ("variable_name", "special_variable_name", "subscript")
                    ),
                    "",
                )
                if name.partition("[")[0] in self.names or (name in POSITIONAL and self._in_called(inner)):
                    return True
            elif inner.type in ("command_substitution", "process_substitution") and self.gives(inner):
                return True
        return False

    def names_in(self, node: Node) -> bool:
        """Like `carries`, for arithmetic contexts: a bare name is a variable."""
        return self.carries(node) or any(
            inner.type in ("variable_name", "word") and source_of(inner) in self.names
            for inner in every(node)
        )

    def unsafe(self, node: Node) -> bool:
        """Whether the file that a word names may belong to the agent."""
        path = self.text(node)
        if ANSWER in path or self.carries(node) or (self._placed and self._is_placed(path)):
            return True
        if path == "/dev/stdin":
            command = next((a for a in above(node) if a.type == "command"), None)
            return command is not None and self.stdin(command) is not None
        if node.type in ("process_substitution", "command_substitution") or is_safe(path):
            return False
        if path.startswith("$"):
            return path.startswith(("$PWD", "$(pwd)", "${PWD"))
        return path.startswith(("/", "~")) or not self.in_a_safe_directory(node)

    def gives(self, node: Node, deep: int = 0) -> bool:
        """Whether the output of commands holds agent text."""
        commands = [n for n in every(node) if n.type == "command"]
        last = words(commands[-1]) if commands else []
        if last and (
            self.name(last[0]) in _COUNTS or ("grep" in self.name(last[0]) and "c" in options(last[1:]))
        ):
            return False
        after = self._behind_tests(commands)
        if after is not None and not any(
            self._brings(inner, deep) for part in after for inner in every(part)
        ):
            return False
        return any(self._brings(inner, deep) for inner in every(node))

    def _brings(self, inner: Node, deep: int) -> bool:
        if inner.type == "file_redirect" and source_of(inner).lstrip().startswith("<"):
            return self._reads(inner)
        return inner.type == "command" and self._prints_agent_text(inner, deep)

    def _behind_tests(self, commands: list[Node]) -> list[Node] | None:
        """The parts of one pipeline of all commands that come after a program of the tests; None without such a program."""
        own = [node for node in commands if (found := words(node)) and self._is_of_the_tests(found)]
        if not own or not _ends_with(commands, own[-1]):
            return None
        pipeline = next((a for a in above(own[-1]) if a.type == "pipeline"), None)
        parts = [] if pipeline is None else pipeline.named_children
        return [part for part in parts if part.start_byte >= own[-1].end_byte]

    def stdin(self, command: Node) -> Node | None:
        """The redirection, or the commands in front, through which the agent feeds a command; None if it does not."""
        for node in (command, *above(command)):
            if node.type in ("function_definition", "program"):
                return next(filter(self._reads, self._redirected_for_all), None)
            for child in reversed(node.children):
                if child.start_byte <= command.start_byte < child.end_byte and node is not command:
                    continue
                if child.type == "file_redirect" and source_of(child).lstrip().startswith("<"):
                    return child if self._reads(child) else None
                if child.type in ("herestring_redirect", "heredoc_redirect"):
                    text = (
                        child
                        if child.type == "herestring_redirect"
                        else next((c for c in child.children if c.type == "heredoc_body"), None)
                    )
                    return child if text is not None and self.carries(text) else None
            if node.type == "pipeline":
                before = [c for c in node.named_children if c.end_byte <= command.start_byte]
                if before:
                    return before[-1] if any(map(self.gives, before)) else None
        return None

    def read_in(self, command: Node, found: list[Node]) -> Node | None:
        """Like `stdin`, for `read` and `mapfile`, which may read another descriptor: `read -u 3 n`, after `exec 3< out`."""
        given = [plain(word) for word in found[1:]]
        number = next((b for a, b in pairwise(given) if re.fullmatch(r"-\w*u", a)), None) or next(
            (m[1] for word in given if (m := re.fullmatch(r"-\w*u(\d+)", word))), None
        )
        if number is None:
            return self.stdin(command)
        opened = re.compile(rf"\s*{re.escape(number)}<(?!&)")
        return next(
            (
                n
                for n in self._nodes
                if n.type == "file_redirect" and opened.match(source_of(n)) and self._reads(n)
            ),
            None,
        )

    def finds_own(self, command: Node) -> bool:
        """Whether `find` looks where the agent's files are, or another command is fed by the agent."""
        found = words(command)
        if not found or self.name(found[0]) != "find":
            return self.stdin(command) is not None
        given = found[1:]
        end = next(
            (at for at, word in enumerate(given) if plain(word).startswith(("-", "(", "!"))), len(given)
        )
        return any(map(self.unsafe, given[:end])) or (not end and not self.in_a_safe_directory(command))

    def is_placed(self, name: str) -> bool:
        """Whether the script put a program of the agent's under this name where commands are found."""
        return any(path.rpartition("/")[2] == name and "/bin/" in path for path in self._placed)

    def _is_placed(self, path: str) -> bool:
        path = _BRACES.sub(r"$\1", path)
        return any(path == place or path.startswith(f"{place}/") for place in self._placed)

    def _place(self, files: list[Node]) -> None:
        """`cp sol.py /tests`, `ln -s /app /opt/app`: what the agent wrote lies there, too."""
        if len(files) < 2:
            return
        target = _BRACES.sub(r"$\1", self.text(files[-1]).rstrip("/"))
        for source in files[:-1]:
            if (is_safe(target) or self.is_temporary(target)) and self.unsafe(source):
                inside = f"{target}/{self.text(source).rstrip('/').rpartition('/')[2]}"
                self._placed |= (
                    {inside} if target in SAFE or target in self._directories else {inside, target}
                )

    def is_temporary(self, path: str) -> bool:
        """Whether a path is that of a file or directory which the script made by `mktemp`."""
        found = _FIRST.match(path)
        return found is not None and found[1] in self._temporary

    def _keeps(self, files: list[Node]) -> None:
        """`… ./prog > "$tmp"`: a file of the script's that holds agent text."""
        self._placed |= {
            _BRACES.sub(r"$\1", path) for path in map(self.text, files) if self.is_temporary(path)
        }

    def _reads(self, redirect: Node) -> bool:
        """Whether `< file`, or `<&3` of an `exec 3< file`, is a file of the agent's."""
        copied = re.fullmatch(r"\s*<&\s*(\d+)", source_of(redirect))
        if copied is None:
            return any(self.unsafe(c) for c in redirect.named_children if c.type != "file_descriptor")
        return any(
            self._reads(node)
            for node in self._nodes
            if node.type == "file_redirect" and re.match(rf"\s*{copied[1]}<(?!&)", source_of(node))
        )

    def _prints_agent_text(self, command: Node, deep: int) -> bool:
        found = words(command)
        if not found:
            return False
        if self.wrapped(command) or ANSWER in source_of(command) or any(self.carries(arg) for arg in found):
            return True
        name, files = self.name(found[0]), operands(found[1:])
        if name in _OWN:
            return False
        if name == "find":
            return self.finds_own(command)
        if name in self.functions:
            return deep < 4 and self.gives(self.functions[name], deep + 1)
        if name in PROGRAM_FIRST:
            files = files[1:]
        elif name in INTERPRETERS:
            inline = {"c", "e"} & set(options(found[1:]))
            files = [] if inline else files[:1]
        elif name in _LISTS and not files:
            return True
        path = self.text(found[0])
        if "/" in path and not path.startswith("$") and self.unsafe(found[0]):
            return True
        return any(self.unsafe(file) and not self.text(file).isdigit() for file in files)

    def _learn(self, node: Node) -> None:
        if node.type == "variable_assignment" and len(node.named_children) > 1:
            if self.carries(node.named_children[1]):
                self.names.add(source_of(node.named_children[0]).partition("[")[0])
        elif node.type == "for_statement":
            values = node.named_children[1:-1]
            if any(
                self.carries(v) or (v.type != "raw_string" and "*" in source_of(v) and self.unsafe(v))
                for v in values
            ):
                self.names.add(source_of(node.named_children[0]))
        elif node.type == "redirected_statement":
            written = [
                c for c in node.named_children if c.type == "file_redirect" and _OUTPUT.match(source_of(c))
            ]
            if written and self._temporary and self.gives(node):
                self._keeps([c.named_children[-1] for c in written])
        elif node.type == "expansion" and any(c.type in (":=", "=") for c in node.children):
            variable, *value = node.named_children  # ${x:=$got}
            if any(map(self.carries, value)):
                self.names.add(source_of(variable))
        elif node.type == "command":
            for found in stages(node):
                name = plain(found[0])
                if name in ("cp", "mv", "ln", "install"):
                    self._place([f for f in operands(found[1:]) if not self.text(f).isdigit()])
                elif name == "tee" and self.stdin(node) is not None:
                    self._keeps(operands(found[1:]))
                elif name in ("read", "mapfile", "readarray") and self.read_in(node, found) is not None:
                    self.names |= {plain(word) for word in operands(found[1:]) if plain(word).isidentifier()}
                elif name == "set" and any(self.carries(word) for word in operands(found[1:])):
                    function = next((a for a in above(node) if a.type == "function_definition"), None)
                    self.called.add("" if function is None else source_of(function.named_children[0]))
                elif name in self.functions and any(self.carries(word) for word in found[1:]):
                    self.called.add(name)

    def _is_of_the_tests(self, command: list[Node]) -> bool:
        """Whether a command runs a program of the tests: what it prints is the tests' own."""
        files = operands(command[1:])
        started = files[:1] if self.name(command[0]) in INTERPRETERS else command[:1]
        return any("/" in self.text(word) and is_safe(self.text(word)) for word in started)

    def _in_called(self, node: Node) -> bool:
        """Whether positional parameters are agent text here: of a function that gets some, or after `set -- $got`."""
        functions = [a for a in above(node) if a.type == "function_definition"]
        names = {source_of(function.named_children[0]) for function in functions} or {""}
        return bool(names & self.called)


def _ends_with(commands: list[Node], last: Node) -> bool:
    """Whether all commands are in one pipeline, which the last one ends."""
    pipeline = next((a for a in above(last) if a.type == "pipeline"), last)
    return all(pipeline.start_byte <= command.start_byte for command in commands)
