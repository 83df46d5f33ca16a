"""The meaning of a script's words before it runs: variables with one value, names of commands, the current directory."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.commands import known_as
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.tree import above, every, is_safe, plain, source_of

NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})
WRAPPER: Final = "PENSTOCK_UNTRUSTED"
_FIXED: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}$]*))?\})")
_WHICH: Final = re.compile(r"""["']?(?:\$\(|`)\s*(?:which|command -v|type -p)\s+([\w.+-]+)\s*[)`]["']?""")
_DEFAULT: Final = re.compile(r"\$\{\w+:?-/tests/?\}")
_OWN_DIRECTORY: Final = re.compile(r"dirname\W+\$\{?(?:0|BASH_SOURCE)|^\W*\$\{(?:0|BASH_SOURCE[^}%]*)%/\*\}")


class FixedText:
    """The words of one script. `variables`: those of its environment, by name, where it sets no other value."""

    def __init__(self, root: Node, variables: Mapping[str, str] = NO_VARIABLES) -> None:
        self._nodes = list(every(root))
        self.functions = {
            source_of(n.named_children[0]): n
            for n in self._nodes
            if n.type == "function_definition" and n.named_children
        }
        assigned = [n for n in self._nodes if n.type == "variable_assignment" and len(n.named_children) > 1]
        often = Counter(source_of(n.named_children[0]) for n in assigned)
        self._fixed = {name: value for name, value in variables.items() if name not in often} | {
            name: value
            for n in assigned
            if often[name := source_of(n.named_children[0])] == 1
            and not {"$", "`", "("} & set(value := plain(n.named_children[1]))
        }
        self._fixed |= {
            source_of(n.named_children[0]): "/tests"
            for n in assigned
            if is_own(source_of(n.named_children[1])) or _DEFAULT.fullmatch(plain(n.named_children[1]))
        }
        self._wrappers = {
            source_of(n.named_children[0]) for n in assigned if names_wrapper(n.named_children[1])
        }
        moves = [(n, words(n)) for n in self._nodes if n.type == "command"]
        went = [
            (n, found[-1] if plain(found[0]) == "popd" else found[1])
            for n, found in moves
            if found
            and (plain(found[0]) == "popd" or (plain(found[0]) in ("cd", "pushd") and len(found) > 1))
        ]
        self._went = sorted(went, key=lambda pair: pair[0].end_byte)

    def text(self, node: Node) -> str:
        """A word without its quotes, with the values of variables that the script sets once, to a fixed text."""
        found = plain(node)
        if node.type == "raw_string":
            return found
        if node.type == "concatenation":
            found = re.sub(r"[\"']", "", found)
        return _FIXED.sub(lambda m: self._fixed.get(m[1] or m[2], m[3] or m[0]), found)

    def name(self, word: Node) -> str:
        """The name under which the lists know a command."""
        which = _WHICH.fullmatch(source_of(word))
        return known_as(which[1] if which else self.text(word))

    def wrapped(self, command: Node) -> bool:
        """Whether a command runs under `$PENSTOCK_UNTRUSTED`: by its words, a variable or a function that holds them."""
        name = source_of(command.named_children[0]) if command.named_children else ""
        if names_wrapper(command) or (name in self.functions and WRAPPER in source_of(self.functions[name])):
            return True
        return any(
            source_of(inner) in self._wrappers
            for word in command.named_children[:3]
            for inner in every(word)
            if inner.type == "variable_name"
        )

    def directory(self, node: Node) -> str | None:
        """The directory to which the script went before this word; None if it went nowhere."""
        inside = {ancestor.id for ancestor in above(node)}
        before = bisect_right(self._went, node.start_byte, key=lambda went: went[0].end_byte)
        for cd, where in reversed(self._went[:before]):
            around = next((a for a in above(cd) if a.type in ("subshell", "command_substitution")), None)
            if around is None or around.id in inside:
                return self.text(where)
        return None

    def in_a_safe_directory(self, node: Node) -> bool:
        """Whether the script went to a directory of the tests before this word (`cd /tests`)."""
        path = self.directory(node)
        return path is not None and (is_safe(path) or is_own(path))


def names_wrapper(node: Node) -> bool:
    """Whether the text of a node names `$PENSTOCK_UNTRUSTED`, outside of commands whose output is a part of the text."""
    if WRAPPER not in source_of(node):
        return False
    if node.type in ("command_substitution", "process_substitution"):
        return False
    return not node.children or any(map(names_wrapper, node.children))


def is_own(text: str) -> bool:
    """Whether a text is the directory of the script, which lies in /tests."""
    return _OWN_DIRECTORY.search(text) is not None and "/.." not in text
