"""The rules for a bash script."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import WRAPPER, AgentText
from orchestrator.tasks.traps.programs import (
    FED,
    INLINE,
    compiles,
    is_fetched,
    loads_program,
    reads_program,
    search_path,
    unpacks,
)
from orchestrator.tasks.traps.python import python_traps
from orchestrator.tasks.traps.rules import Rule, Trap
from orchestrator.tasks.traps.tree import (
    above,
    every,
    is_safe,
    leading,
    operands,
    options,
    parse,
    plain,
    quoted,
    source_of,
    words,
)
from orchestrator.tasks.traps.variables import integers, names_agent_text

_CALCULATES: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_GREPS: Final = frozenset({"grep", "egrep", "fgrep", "rg", "zgrep"})
_INTERPRETERS: Final = frozenset(
    {"bash", "sh", "dash", "zsh", "node", "ruby", "perl", "php", "java", "deno", "lua", "Rscript"}
)
_TOOLS: Final = frozenset(
    {"make", "gmake", "cmake", "ctest", "ninja", "meson", "bazel", "just", "npm", "npx", "yarn", "pnpm", "bun", "jest", "vitest", "mocha", "pytest",
     "py.test", "nosetests", "nose2", "tox", "nox", "uv", "poetry", "pipenv", "hatch", "pdm", "pip", "pip3", "cargo", "go", "mvn", "gradle", "sbt",
     "ant", "rake", "bundle", "rspec", "composer", "phpunit", "mix", "dotnet", "swift", "stack", "cabal"}
)  # fmt: skip
_READERS: Final = frozenset(
    {
        "cat",
        "head",
        "tail",
        "cmp",
        "diff",
        "sed",
        "awk",
        "sort",
        "jq",
        "wc",
        "sha256sum",
        "md5sum",
        "tr",
        "cut",
        "grep",
    }
)
_COPIES: Final = {
    "cp": (
        ("-r", "-R", "-a", "-d", "-P", "--recursive", "--archive", "--no-dereference"),
        ("-L", "--dereference"),
    ),
    "mv": ((), ()),
    "rsync": (("-a", "-l", "--archive", "--links"), ("-L", "--copy-links")),
    "tar": (("-c", "--create"), ("-h", "--dereference")),
}
"""The options with which links are copied as links, and those that copy their targets."""
_PROGRAM_FILES: Final = ("-f", "--file", "--from-file")
_WRITES: Final = frozenset({">", ">>", ">|", "&>", "&>>"})
_ONE_LINE: Final = re.compile(r"\b(?:head|tail) (?:-n ?)?-?1\b")
_VARIABLE: Final = re.compile(r"\$(?:\w+|\{[^}]*\})")  # with any value: PROGRAM_TEXT covers it
_REMOVES_LINKS: Final = re.compile(rb"\bfind\b.* -type l\b.* -delete\b")
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")


def shell_traps(file: str, text: str, agent_modules: frozenset[str]) -> list[Trap]:
    """The traps of one script, in the order of their lines."""
    root = parse(text)
    return _Reading(file, text, root, agent_modules).traps()


class _Reading:
    """The analysis of one script."""

    def __init__(self, file: str, text: str, root: Node, agent_modules: frozenset[str]) -> None:
        self._file, self._lines, self._root, self._modules = file, text.splitlines(), root, agent_modules
        self._text, self._numbers = AgentText(root), integers(root)
        self._cleaned = max(
            (found.start() for found in _REMOVES_LINKS.finditer(root.text or b"")), default=-1
        )
        self._checked = {
            plain(word)
            for node in every(root)
            if node.type in ("test_command", "command") and re.search(r"-[Lh] |^rm ", source_of(node))
            for word in every(node)
            if word.type in ("word", "string", "raw_string", "simple_expansion")
        }
        runs = [
            n.start_byte
            for n in every(root)
            if n.type == "command" and (WRAPPER in source_of(n) or self._runs_agent(n))
        ]
        self._ran = min(runs, default=len(text.encode(errors="replace")) + 1)

    def traps(self) -> list[Trap]:
        found = {}
        rules: dict[str, Callable[[Node], Iterator[Rule]]] = {
            "command": self._command,
            "test_command": self._test,
            "case_item": self._case,
            "file_redirect": self._redirect,
        }
        extra: list[Trap] = []
        for node in every(self._root):
            line = node.start_point[0] + 1
            for rule in (
                *self._calculates(node),
                *search_path(node, self._text),
                *(rules[node.type](node) if node.type in rules else ()),
            ):
                found[(line, rule)] = self._trap(rule, line)
            if node.type == "ERROR" or node.is_missing:
                found[(line, Rule.UNREADABLE)] = self._trap(Rule.UNREADABLE, line)
            extra += self._python_inside(node)
        return sorted([*found.values(), *extra], key=lambda trap: (trap.line, trap.rule))

    def _trap(self, rule: Rule, line: int) -> Trap:
        return Trap(
            rule=rule,
            file=self._file,
            line=line,
            text=self._lines[line - 1].strip() if line <= len(self._lines) else "",
        )

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
        if re.search(r" -(nt|ot) ", source_of(node)):
            yield Rule.TIMES
        if not source_of(node).startswith("[["):
            yield from self._old_test(node)
            return
        for expression in every(node):
            if expression.type != "binary_expression" or len(expression.children) < 3:
                continue
            left, operator, *rest = expression.children
            if not rest or operator.type in ("&&", "||"):
                continue
            right = rest[-1]
            sign = source_of(operator)
            if sign in _CALCULATES and (self._text.carries(left) or self._text.carries(right)):
                yield Rule.ARITHMETIC
            elif sign in ("==", "=", "!=", "=~"):
                yield from self._matched(left, sign, rest)

    def _matched(self, left: Node, sign: str, right: list[Node]) -> Iterator[Rule]:
        if any(self._unquoted_agent_text(node) for node in right):
            yield Rule.PATTERN
        text = "".join(map(source_of, right))
        bare = re.sub(r'"[^"]*"|\'[^\']*\'', "", text)
        loose = (
            "*" in bare
            if sign != "=~"
            else not (text.lstrip().startswith("^") and text.rstrip().endswith("$"))
        )
        if self._text.carries(left) and sign != "!=" and loose:
            yield Rule.SOMEWHERE

    def _unquoted_agent_text(self, node: Node) -> bool:
        if quoted(node):
            return False
        if node.type in ("simple_expansion", "expansion", "command_substitution"):
            return self._text.carries(node)
        return any(self._unquoted_agent_text(child) for child in node.named_children)

    def _old_test(self, node: Node) -> Iterator[Rule]:
        if any(self._unquoted_agent_text(child) for child in node.named_children):
            yield Rule.OPERATORS

    def _case(self, node: Node) -> Iterator[Rule]:
        """One pattern of a `case`."""
        if not node.named_children or node.parent is None:
            return
        pattern = node.named_children[0]
        if self._unquoted_agent_text(pattern):
            yield Rule.PATTERN
        bare = re.sub(r'"[^"]*"|\'[^\']*\'', "", source_of(pattern))
        if self._text.carries(node.parent.named_children[0]) and "*" in bare and source_of(pattern) != "*":
            yield Rule.SOMEWHERE

    def _command(self, node: Node) -> Iterator[Rule]:
        found = words(node)
        if not found or WRAPPER in source_of(node):
            return
        name, arguments = plain(found[0]), found[1:]
        if name in ("[", "test"):
            if re.search(r" -(nt|ot) ", source_of(node)):
                yield Rule.TIMES
            if any(self._unquoted_agent_text(a) for a in arguments):
                yield Rule.OPERATORS
        elif name == "let":
            if any(
                self._text.names_in(a) or self._text.names & set(re.findall(r"\w+", plain(a)))
                for a in arguments
            ):
                yield Rule.ARITHMETIC
        elif name in _GREPS:
            yield from self._grep(node, arguments)
        elif name in ("source", "."):
            if any(self._text.unsafe(a) for a in operands(arguments)[:1]):
                yield Rule.SOURCED
        elif name == "eval":
            if any(self._text.carries(a) for a in arguments):
                yield Rule.PROGRAM_TEXT
        elif name in ("git", "hg"):
            yield Rule.GIT
        elif name in _TOOLS:
            yield Rule.BUILD_TOOL
        elif name in ("xargs", "find"):
            yield from self._names(name, arguments)
        elif name in _COPIES:
            if self._takes_links_along(name, arguments):
                yield Rule.COPIED
        elif name in ("sed", "awk", "gawk", "jq", "perl"):
            by_file = [a for before, a in pairwise(arguments) if plain(before) in _PROGRAM_FILES]
            if any(self._text.unsafe(a) for a in by_file) or any(
                a.type != "raw_string" and self._text.carries(a) for a in operands(arguments)[:1]
            ):
                yield Rule.PROGRAM_TEXT
        fed = name in FED and self._fed_by_agent(node)
        if reads_program(name, arguments, self._text, fed=fed):
            yield Rule.PROGRAM_TEXT
        if compiles(name, arguments, self._text, fed=fed):
            yield Rule.COMPILED
        if node.start_byte > self._cleaned and unpacks(node, name, arguments, self._text, fed=fed):
            yield Rule.COPIED
        yield from self._interpreter(node, name, arguments)
        if self._runs_agent(node) or loads_program(name, arguments, self._text):
            yield Rule.AGENT_PROGRAM
        if node.start_byte > self._ran and name in _READERS:
            first = 1 if name in ("sed", "awk", "jq", "tr", "grep") else 0
            if any(self._may_be_link(a) for a in operands(arguments)[first:]):
                yield Rule.LINKS

    def _interpreter(self, node: Node, name: str, arguments: list[Node]) -> Iterator[Rule]:
        python = bool(_PYTHON.fullmatch(name))
        if not python and name not in _INTERPRETERS:
            return
        letters, files = options(leading(arguments)), operands(arguments)
        inline = bool(set(INLINE.get(name, "c")) & set(letters))
        if inline:
            if files and files[0].type != "raw_string" and self._text.carries(files[0]):
                yield Rule.PROGRAM_TEXT
        elif name.endswith("sh") and not files and self._fed_by_agent(node) and not is_fetched(node):
            yield Rule.SOURCED
        if python and not set("IP") & set(letters):
            if "m" in letters and files and plain(files[0]) in ("pytest", "unittest", "tox", "nox"):
                yield Rule.BUILD_TOOL
            if (
                "c" in letters
                or "m" in letters
                or not files
                or plain(files[0]) == "-"
                or "PYTHONPATH=" in source_of(node)
            ):
                yield Rule.NOT_ISOLATED
        elif name == "node" and inline:
            yield Rule.NOT_ISOLATED

    def _runs_agent(self, node: Node) -> bool:
        found = words(node)
        if not found or WRAPPER in source_of(node):
            return False
        name, arguments = plain(found[0]), found[1:]
        if self._text.carries(found[0]) or ("/" in name and not name.startswith("$") and not is_safe(name)):
            return True
        if _PYTHON.fullmatch(name) or name in _INTERPRETERS:
            letters, files = options(leading(arguments)), operands(arguments)
            inline = set(INLINE.get(name, "cm"))
            return (
                bool(files)
                and plain(files[0]) != "-"
                and not inline & set(letters)
                and self._text.unsafe(files[0])
            )
        return False

    def _grep(self, node: Node, arguments: list[Node]) -> Iterator[Rule]:
        letters, files = options(arguments), operands(arguments)
        by_file = [
            a for before, a in pairwise(arguments) if re.fullmatch(r"-[a-zA-Z]*f|--file", plain(before))
        ]
        if any(self._text.unsafe(a) for a in by_file) or any(self._text.carries(a) for a in files[:1]):
            yield Rule.GREP_BY_ANSWER
            return
        if (
            any(ancestor.type in ("command_substitution", "negated_command") for ancestor in above(node))
            or "v" in letters
            or "c" in letters
        ):
            return
        pattern = plain(files[0]) if files else ""
        whole_line = "x" in letters or (pattern.startswith("^") and pattern.endswith("$"))
        pipeline = next((ancestor for ancestor in above(node) if ancestor.type == "pipeline"), None)
        before = (
            [] if pipeline is None else [c for c in pipeline.named_children if c.end_byte <= node.start_byte]
        )
        if whole_line and any(_ONE_LINE.search(source_of(part)) for part in before):
            return
        reads = [*files[1:]] if not by_file else files
        if (
            any(self._text.unsafe(a) for a in reads)
            or self._fed_by_agent(node)
            or any(self._text.gives(p) for p in before)
        ):
            yield Rule.SOMEWHERE

    def _fed_by_agent(self, node: Node) -> bool:
        parents = (
            (node, node.parent)
            if node.parent is not None and node.parent.type == "redirected_statement"
            else (node,)
        )
        for parent in parents:
            for child in parent.children:
                if child.type == "file_redirect" and source_of(child).lstrip().startswith("<"):
                    return any(self._text.unsafe(c) for c in child.named_children)
                if child.type == "herestring_redirect":
                    return self._text.carries(child)
        pipeline = next((ancestor for ancestor in above(node) if ancestor.type == "pipeline"), None)
        return pipeline is not None and any(
            self._text.gives(c) for c in pipeline.named_children if c.end_byte <= node.start_byte
        )

    def _names(self, name: str, arguments: list[Node]) -> Iterator[Rule]:
        texts = [plain(a) for a in arguments]
        shell = any(word in ("sh", "bash") for word in texts)
        if (shell and any("{}" in word and word != "{}" for word in texts)) or (
            name == "xargs"
            and not {"-0", "--null", "-d", "--delimiter"} & set(texts)
            and not any(w.startswith(("-0", "-d")) for w in texts)
        ):
            yield Rule.NAMES
        if name == "find" and self._finds_programs(texts):
            yield Rule.AGENT_PROGRAM

    def _finds_programs(self, spoken: list[str]) -> bool:
        """`find … -exec bash {} \\;`"""
        for at, word in enumerate(spoken):
            if word in ("-exec", "-execdir") and "{}" in spoken[at + 1 : at + 3]:
                first = spoken[at + 1]
                if first == "{}" or first in _INTERPRETERS or _PYTHON.fullmatch(first):
                    return True
        return False

    def _redirect(self, node: Node) -> Iterator[Rule]:
        """The agent may leave a link under the name of a file that the tests write, and its program may create one for a file that they read."""
        writes = any(child.type in _WRITES for child in node.children)
        if (writes or node.start_byte > self._ran) and any(
            self._may_be_link(child) for child in node.named_children if child.type != "file_descriptor"
        ):
            yield Rule.LINKS

    def _takes_links_along(self, name: str, arguments: list[Node]) -> bool:
        along, follows = _COPIES[name]
        sources = operands(arguments)
        given = {word for word in map(plain, arguments) if word.startswith("--")}
        given |= {
            f"-{letter}"
            for word in map(plain, arguments)
            if not word.startswith("--")
            for letter in word[1:]
            if word[0] == "-"
        }
        if name == "tar":
            if sources and not plain(arguments[0]).startswith("-"):
                given |= {f"-{letter}" for letter in plain(sources[0])}
                sources = sources[1:]
        else:
            sources = sources[:-1]
        if (along and not given & set(along)) or given & set(follows):
            return False
        return any(self._may_be_link(a) for a in sources)

    def _may_be_link(self, word: Node) -> bool:
        path = plain(word)
        if (
            not path
            or path.startswith(("$", "/", "-", "&"))
            or path.isdigit()
            or word.type in ("process_substitution", "command_substitution")
        ):
            return path.startswith("/app") and path not in self._checked
        return path not in self._checked

    def _python_inside(self, node: Node) -> list[Trap]:
        """Python code inside the script: `python3 -c '…'` and here-documents."""
        if (
            node.type != "command"
            or WRAPPER in source_of(node)
            or not _PYTHON.fullmatch(plain(words(node)[0]) if words(node) else "")
        ):
            return []
        found = []
        for inner in every(
            node.parent if node.parent is not None and node.parent.type == "redirected_statement" else node
        ):
            if inner.type in ("raw_string", "string", "heredoc_body"):
                source = source_of(inner) if inner.type == "heredoc_body" else plain(inner)
                if inner.type == "string":
                    source = _VARIABLE.sub("_", re.sub(r'\\([\\"$`])', r"\1", source))
                found += python_traps(self._file, source, self._modules, first=inner.start_point[0] + 1)
        return found
