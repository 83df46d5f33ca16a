"""The rules for one command. What is not known to treat files as data may run them."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import ANSWER, AgentText
from orchestrator.tasks.traps.awk_numbers import looks_for_answer, passes_nan
from orchestrator.tasks.traps.commands import (
    CALCULATORS,
    CONSOLES,
    DATA,
    INTERPRETERS,
    KNOWN,
    NAMED,
    READERS,
    SHELLS,
    TOOLS,
)
from orchestrator.tasks.traps.comparisons import by_times
from orchestrator.tasks.traps.fixed_text import WRAPPER
from orchestrator.tasks.traps.git import runs_nothing
from orchestrator.tasks.traps.interpreters import module_of, runs, started
from orchestrator.tasks.traps.launch import FOUND, base, found_for, shell_texts, stages, words
from orchestrator.tasks.traps.links import COPIES, Links
from orchestrator.tasks.traps.own_word import by_own_files
from orchestrator.tasks.traps.paid_text import JUDGES
from orchestrator.tasks.traps.programs import (
    compiles,
    is_compiler,
    is_configured,
    loads_program,
    reads_program,
    takes_names_as_options,
    unpacks,
)
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.somewhere import GREPS, by_comm, by_expr, by_grep, by_selection
from orchestrator.tasks.traps.transforms import data_files, transforms
from orchestrator.tasks.traps.tree import every, is_safe, operands, options, plain, source_of

_REPEAT: Final = frozenset({"xargs", "parallel"})
_PASSED: Final = re.compile(r"""["']?\$(?:[@*1]|\{@:(\d+)\})["']?""")


class Commands:
    """The commands of one script. `functions`: names that are shell functions."""

    def __init__(self, root: Node, text: AgentText, *, links: Links, functions: frozenset[str]) -> None:
        self._text, self._links, self._functions = text, links, functions
        commands = [node for node in every(root) if node.type == "command"]
        self._passing = {
            name: int(passed[1] or 1)
            for name, body in text.functions.items()
            for n in every(body)
            if n.type == "command" and WRAPPER not in source_of(body) and (w := words(n))
            if (passed := _PASSED.fullmatch(source_of(w[0])))
        }
        programs = {Rule.AGENT_PROGRAM, Rule.BUILD_TOOL}
        self._ran = min(
            (n.start_byte for n in commands if not text.wrapped(n) and programs & set(self._all(n))),
            default=None,
        )

    def ran_before(self, node: Node) -> bool:
        """Whether a program of the agent's ran before this place of the script, where it could create links: not under the wrapper."""
        return self._ran is not None and node.start_byte > self._ran

    def runs_agents(self, node: Node, found: list[Node]) -> bool:
        """Whether these words start a program of the agent's, or a tool that the agent's files configure."""
        return bool(found) and bool({Rule.AGENT_PROGRAM, Rule.BUILD_TOOL} & set(self._one(node, found)))

    def rules(self, node: Node) -> Iterator[Rule]:
        """The rules that a command breaks."""
        yield from self._all(node)
        found = words(node)
        if not self.ran_before(node) or not found or (name := self._text.name(found[0])) not in READERS:
            return
        if any(self._links.possible(a) for a in data_files(name, found[1:])):
            yield Rule.LINKS

    def _all(self, node: Node) -> Iterator[Rule]:
        levels = [*stages(node)]
        if not levels:
            return
        if any(base(found[0]) in _REPEAT for found in levels):
            yield from self._repeated(node, levels)
        found = words(node)
        if found:
            yield from self._one(node, found)
            if passed := found[self._passing.get(plain(found[0]), len(found)) :]:
                yield from self._one(node, passed)
        for levels in found_for(node):
            if levels and (self._text.finds_own(node) or not any(plain(word) == FOUND for word in levels[0])):
                yield from self._found(node, levels[-1])

    def _found(self, node: Node, found: list[Node]) -> Iterator[Rule]:
        """A command that `find` starts. Its output and exit status decide nothing by themselves."""
        if plain(found[0]) == FOUND:
            yield Rule.AGENT_PROGRAM
        else:
            yield from (rule for rule in self._one(node, found) if rule not in (Rule.SOMEWHERE, Rule.NAMES))

    def _one(self, node: Node, found: list[Node]) -> Iterator[Rule]:
        path, name, arguments = self._text.text(found[0]), self._text.name(found[0]), found[1:]
        if (
            self._text.carries(found[0])
            or self._text.is_placed(path)
            or ("/" in path and self._text.unsafe(found[0]))
        ):
            yield Rule.AGENT_PROGRAM
        if path in self._functions or ("/" in path and name not in KNOWN):
            return  # functions are read where they stand, and programs of the tests in files of their own
        fed = self._text.stdin(node) is not None
        if name == "let":
            if any(self._text.names_in(a) or self._text.names & _names(a) for a in arguments):
                yield Rule.ARITHMETIC
        elif name in GREPS:
            yield from by_grep(node, arguments, self._text)
        elif name in ("source", "."):
            if any(self._text.unsafe(a) for a in operands(arguments)[:1]):
                yield Rule.SOURCED
        elif name in ("git", "hg") or name in TOOLS:
            outside = name == "git" and runs_nothing(arguments, self._text)
            if not outside and (
                not self._text.in_a_safe_directory(node) or self._reads_agents(arguments, named=True)
            ):
                yield Rule.BUILD_TOOL if name in TOOLS else Rule.GIT
        elif name in ("docker", "podman") and arguments and plain(arguments[0]) == "compose":
            yield Rule.BUILD_TOOL
        elif name == "expr":
            if by_expr(node, arguments, self._text):
                yield Rule.SOMEWHERE
        elif name == "comm":
            if by_comm(node, arguments, self._text):
                yield Rule.SOMEWHERE
        elif name == "pip":
            if self._reads_agents(arguments, named=True):
                yield Rule.BUILD_TOOL
        elif name in INTERPRETERS:
            yield from runs(node, name, arguments, self._text)
            if module := module_of(name, arguments):
                yield from self._one(node, module)
        if name == "find":
            yield from self._names(arguments)
        if name in COPIES and self._links.taken_along(name, arguments):
            yield Rule.COPIED
        if takes_names_as_options(name, arguments, self._text):
            yield Rule.NAMES
        if is_configured(name, arguments, self._text):
            yield Rule.PROGRAM_TEXT
        if by_selection(node, name, arguments, self._text, fed=fed):
            yield Rule.SOMEWHERE
        if by_times(node, name, arguments, self._text):
            yield Rule.TIMES
        if passes_nan(node, name, arguments, self._text, fed=fed):
            yield Rule.NOT_A_NUMBER
        yield from looks_for_answer(node, name, arguments, self._text)
        yield from by_own_files(node, name, arguments, self._text)
        yield from transforms(name, arguments, self._text, fed=fed)
        if reads_program(name, arguments, self._text, fed=fed):
            yield Rule.PROGRAM_TEXT
        if compiles(name, arguments, self._text, fed=fed):
            yield Rule.COMPILED
        if node.start_byte > self._links.removed_at and unpacks(node, name, arguments, self._text, fed=fed):
            yield Rule.COPIED
        if loads_program(name, arguments, self._text):
            yield Rule.AGENT_PROGRAM
        if self._is_unknown(name) and (fed or self._reads_agents(arguments, named=name in NAMED)):
            yield Rule.UNKNOWN

    def _is_unknown(self, name: str) -> bool:
        if name in NAMED:
            return name != "pip"
        listed = (
            name in DATA or name in TOOLS or name in INTERPRETERS or name in CALCULATORS or name in CONSOLES
        )
        return not (listed or is_compiler(name) or name in ("su", "script", "watch", "hyperfine", "ldd"))

    def _reads_agents(self, arguments: list[Node], *, named: bool) -> bool:
        """Whether an operand, or the value of a long option, is a file or a text of the agent's. `named`: bare words are names."""
        given = operands(arguments)
        if any(self._text.carries(a) for a in arguments):
            return True
        for at, word in enumerate(given):
            path = self._text.text(word)
            bare = not ({"/", "*"} & set(path) or path.startswith("."))
            verb = at == 0 and len(given) > 1 and bare and "." not in path
            if not ((bare and named) or verb or not self._is_path(path)) and self._text.unsafe(word):
                return True
        return any(
            value.startswith((".", "/app")) and not is_safe(value)
            for word in arguments
            if (value := plain(word).partition("=")[2]) and plain(word).startswith("--")
        )

    def _is_path(self, path: str) -> bool:
        """Whether a word may be a file of the agent's: no number, address or place of the judge's."""
        if ANSWER in path:
            return True
        return not (
            path.isdigit()
            or "://" in path
            or path.startswith(("localhost", "127.0.0.1", *JUDGES))
            or "=" in path
            or not path
            or self._text.is_temporary(path)
        )

    def _repeated(self, node: Node, levels: list[list[Node]]) -> Iterator[Rule]:
        """`xargs`, `parallel`: what they read becomes the end of a command, or commands."""
        at, repeat = next((at, found) for at, found in enumerate(levels) if base(found[0]) in _REPEAT)
        behind = levels[at + 1] if at + 1 < len(levels) else []
        given = [plain(word) for word in repeat]
        fed = self._text.stdin(node) is not None or any(
            self._text.unsafe(value)
            for before, value in pairwise(repeat)
            if plain(before) in ("-a", "--arg-file", "::::")
        )
        yield from self._names(repeat)
        if base(repeat[0]) == "xargs" and not any(
            w.startswith(("-0", "-d", "--null", "--delimiter")) for w in given
        ):
            yield Rule.NAMES
        if not fed:
            return
        name = self._text.name(behind[0]) if behind else ""
        if name in INTERPRETERS:
            letters, rest = started(name, behind[1:])
            if not rest or (name in SHELLS and "c" in letters and not shell_texts(behind)):
                yield Rule.PROGRAM_TEXT
        elif base(repeat[0]) == "parallel" and not behind:
            yield Rule.PROGRAM_TEXT

    def _names(self, arguments: list[Node]) -> Iterator[Rule]:
        texts = [plain(a) for a in arguments]
        at = next((at for at, word in enumerate(texts) if base(arguments[at]) in SHELLS), None)
        if at is not None and any(
            "{}" in word and (word != "{}" or "c" in options(arguments[at + 1 : at + 2]))
            for word in texts[at + 2 : at + 3]
        ):
            yield Rule.NAMES


def _names(word: Node) -> set[str]:
    return set(re.findall(r"\w+", plain(word)))
