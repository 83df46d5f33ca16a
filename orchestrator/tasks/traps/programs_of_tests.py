"""Which files of the tests are programs, and in which language: by their names, first lines, and the scripts that start them."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.commands import INTERPRETERS, SHELLS, known_as
from orchestrator.tasks.traps.interpreters import started
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.tree import every, is_safe, operands, parse, plain, source_of

_FIRST_LINE: Final = re.compile(rb"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S+)")
_PYTHONS: Final = frozenset({"python", "pypy"})


class Language(StrEnum):
    """The languages that this check reads, and the others."""

    SHELL = "shell"
    PYTHON = "python"
    OTHER = "other"


class Programs:
    """The programs among the files of the tests."""

    def __init__(self, tests: Mapping[str, bytes]) -> None:
        self._languages = {
            path: language for path, body in tests.items() if (language := _by_itself(path, body))
        }
        self._tests = {path.rpartition("/")[2]: path for path in tests}
        self._unread: dict[str, list[tuple[int, str]]] = {}
        self.functions: frozenset[str] = frozenset()
        looked: set[str] = set()
        while new := sorted({path for path, it in self._languages.items() if it is Language.SHELL} - looked):
            for path in new:
                looked.add(path)
                self._look(path, parse(tests[path].decode(errors="replace")))

    def language(self, path: str) -> Language | None:
        """None for data."""
        return self._languages.get(path)

    def unread(self, path: str) -> list[tuple[int, str]]:
        """The lines of a script that start a program of the tests in another language, with the name of the program."""
        return self._unread.get(path, [])

    def _look(self, path: str, root: Node) -> None:
        """Learn from one script which files are programs."""
        nodes = [*every(root)]
        self.functions |= {
            source_of(n.named_children[0])
            for n in nodes
            if n.type == "function_definition" and n.named_children
        }
        for node in nodes:
            for name, language in _starts(node):
                file = self._tests.get(name)
                if file is None:
                    continue
                if self._languages.setdefault(file, language) is Language.OTHER:
                    self._unread.setdefault(path, []).append((node.start_point[0] + 1, name))


def _by_itself(path: str, body: bytes) -> Language | None:
    first = _FIRST_LINE.match(body)
    name = known_as(first[1].decode(errors="replace")) if first else ""
    if path.endswith((".sh", ".bash")) or name in SHELLS:
        return Language.SHELL
    if path.endswith(".py") or name in _PYTHONS:
        return Language.PYTHON
    return Language.OTHER if name else None


def _starts(node: Node) -> Iterator[tuple[str, Language]]:
    """The names of the files that a command runs as programs."""
    found = words(node) if node.type == "command" else []
    if not found:
        return
    path, name, arguments = plain(found[0]), known_as(plain(found[0])), found[1:]
    if name in ("source", "."):
        yield from ((plain(word).rpartition("/")[2], Language.SHELL) for word in operands(arguments)[:1])
    elif name in INTERPRETERS:
        letters, rest = started(name, arguments)
        inline = set(INTERPRETERS[name][0]) & set(letters) or (name in _PYTHONS and "m" in letters)
        language = (
            Language.PYTHON if name in _PYTHONS else Language.SHELL if name in SHELLS else Language.OTHER
        )
        if rest and not inline:
            yield plain(rest[0]).rpartition("/")[2], language
    elif "/" in path and (is_safe(path) or path.startswith("$")):
        yield name, Language.OTHER
