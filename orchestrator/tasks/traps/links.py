"""Names that may be links: what the tests write, what they read after a program of the agent's, what they copy."""

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.tree import every, operands, plain, source_of

WRITES: Final = frozenset({">", ">>", ">|", "&>", "&>>"})
COPIES: Final = {
    "cp": (
        ("-r", "-R", "-a", "-d", "-P", "--recursive", "--archive", "--no-dereference"),
        ("-L", "--dereference"),
    ),
    "mv": ((), ()),
    "rsync": (("-a", "-l", "--archive", "--links"), ("-L", "--copy-links")),
    "tar": (("-c", "--create"), ("-h", "--dereference")),
}
"""The options with which links are copied as links, and those that copy their targets."""
_VALUES_OF_TAR: Final = "CfTXbIgNV"
"""Letters of options that have a value: the rest of the word, or the next one."""
_LONG_OF_TAR: Final = {
    "--directory": "C",
    **dict.fromkeys(
        ("--file", "--files-from", "--exclude", "--exclude-from", "--transform", "--use-compress-program"),
        "f",
    ),
    **dict.fromkeys(("--owner", "--group", "--mode", "--mtime", "--sort", "--format", "--label"), "f"),
}
_REMOVED: Final = re.compile(rb"\bfind\b.* -type l\b.* -delete\b")


class Links:
    """Which names of a script may be links, and where."""

    def __init__(self, root: Node, text: AgentText) -> None:
        self._text = text
        self.removed_at = max((found.start() for found in _REMOVED.finditer(root.text or b"")), default=-1)
        self._checked = {
            text.text(word)
            for node in every(root)
            if node.type in ("test_command", "command") and re.search(r"-[Lh] |^rm ", source_of(node))
            for word in every(node)
            if word.type in ("word", "string", "raw_string", "simple_expansion")
        }

    def redirected(self, node: Node, *, ran: bool) -> bool:
        """The agent may leave a link under the name of a file that the tests write, and its program may create one for a file that they read."""
        writes = any(child.type in WRITES for child in node.children)
        return (writes or ran) and any(
            self.possible(child) for child in node.named_children if child.type != "file_descriptor"
        )

    def taken_along(self, name: str, arguments: list[Node]) -> bool:
        """Whether a command copies links as links."""
        along, follows = COPIES[name]
        sources = operands(arguments)
        given = {word for word in map(plain, arguments) if word.startswith("--")}
        given |= {
            f"-{letter}"
            for word in map(plain, arguments)
            if not word.startswith("--")
            for letter in word[1:]
            if word[0] == "-"
        }
        if name == "tar" and arguments and not plain(arguments[0]).startswith("-"):
            given |= {f"-{letter}" for letter in plain(arguments[0])}
        if (along and not given & set(along)) or given & set(follows):
            return False
        if name == "tar":
            return any(self._packed(place, source) for place, source in self._sources_of_tar(arguments))
        return any(self.possible(a) for a in sources[:-1])

    def _packed(self, place: str, source: Node) -> bool:
        """Whether an operand of tar, which counts from `place`, may lead to a link of the agent's."""
        path = self._text.text(source)
        if not place.startswith("/") or path.startswith(("/", "$", "~")):
            return self.possible(source)
        return posixpath.normpath(posixpath.join(place, path)).startswith("/app")

    def _sources_of_tar(self, arguments: list[Node]) -> Iterator[tuple[str, Node]]:
        """The operands of tar, each with the directory from which it counts; empty for that of the script."""
        place, values, ended = "", "", False
        for at, node in enumerate(arguments):
            word = self._text.text(node)
            if values:
                place = posixpath.join(place, word) if values[0] == "C" else place
                values = values[1:]
            elif not ended and (word.startswith("-") or at == 0) and word != "-":
                ended = word == "--"
                name, given, value = word.partition("=")
                if word.startswith("--"):
                    values = "" if given else _LONG_OF_TAR.get(name, "")
                    place = posixpath.join(place, value) if given and name == "--directory" else place
                elif at == 0 and not word.startswith("-"):
                    values = "".join(letter for letter in word if letter in _VALUES_OF_TAR)
                elif (found := next((n for n, each in enumerate(word) if each in _VALUES_OF_TAR), 0)) > 0:
                    values = "" if word[found + 1 :] else word[found]
                    place = posixpath.join(place, word[found + 1 :]) if word[found] == "C" else place
            else:
                yield place, node

    def possible(self, word: Node) -> bool:
        """Whether a word may be the name of a link."""
        path = self._text.text(word)
        if path in self._checked or path.isdigit() or not path:
            return False
        if word.type in ("process_substitution", "command_substitution") or path.startswith(
            ("$", "/", "-", "&", "~")
        ):
            return path.startswith("/app")
        return self._text.unsafe(word)
