"""Programs that get what the tests read themselves: `while read -r input want; do … ./prog "$input"; done < /tests/cases`.

Such a program reads the expected values, and the tests miss the cases that it took.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tree_sitter import Node

from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.tree import above, every, plain, source_of

_READS: Final = ("read", "mapfile", "readarray")
_INPUT: Final = re.compile(r"\s*0?<(?![<(])")
_OTHER: Final = re.compile(r"\s-[a-zA-Z]*u\s*(\S+)|<&\s*([1-9$]\S*)")
_LOOPS: Final = ("while_statement", "for_statement", "c_style_for_statement")
_MAX_DEPTH: Final = 4


class _Source(NamedTuple):
    """The owner of a command's standard input: `node`, whether that is the command alone, and whether the input is a file, not a pipe."""

    node: Node
    own: bool = False
    file: bool = True


class SharedInput:
    """The standard input of the commands of one script."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._commands = [node for node in every(root) if node.type == "command"]
        self._reads = [
            node for node in self._commands if (found := words(node)) and plain(found[0]) in _READS
        ]
        self._own_reads = [node for node in self._reads if _descriptor(node) is None]
        self._opened_at = min(
            (
                node.start_byte
                for node in every(root)
                if node.type == "redirected_statement"
                and source_of(node.named_children[0]) == "exec"
                and any(map(_is_input, node.named_children))
            ),
            default=None,
        )

    def reaches(self, command: Node) -> bool:
        """Whether a program that the tests start themselves gets an input, or a descriptor, from which they read."""
        return bool(self._reads) and (self._through_descriptor(command) or self._shares(command))

    def reaches_wrapped(self, command: Node) -> bool:
        """Whether a program under the wrapper gets this input, too: a pipe, or a file that the tests only read later."""
        found = self._source(command)
        readers = [*self._readers(found, command)]
        return bool(readers) and (
            not found.file or all(read.start_byte > command.start_byte for read in readers)
        )

    def _shares(self, command: Node, deep: int = 0) -> bool:
        found = self._source(command)
        if found.node.type == "function_definition" and deep < _MAX_DEPTH:
            name = source_of(found.node.named_children[0])
            calls = [node for node in self._commands if (w := words(node)) and plain(w[0]) == name]
            return any(self._shares(call, deep + 1) for call in calls)
        return any(self._readers(found, command))

    def _readers(self, found: _Source, command: Node) -> Iterator[Node]:
        """The commands of the tests that read the same input."""
        unknown = found.node == self._root and not self._is_opened(command)
        if found.own or unknown or found.node.type == "function_definition":
            return
        yield from (read for read in self._own_reads if self._source(read).node == found.node)

    def _is_opened(self, command: Node) -> bool:
        """Whether an `exec < file` stands in front of the command."""
        return self._opened_at is not None and self._opened_at < command.start_byte

    def _through_descriptor(self, command: Node) -> bool:
        """Whether a loop around the command reads from another descriptor, which every program in it inherits."""
        loops = [node for node in above(command) if node.type in _LOOPS]
        return any(
            (number := _descriptor(read)) is not None and f"{number}<&-" not in _around(command)
            for loop in loops
            for read in self._reads
            if loop.start_byte <= read.start_byte < loop.end_byte
        )

    def _source(self, command: Node) -> _Source:
        before = command
        for node in (command, *above(command)):
            if node.type == "function_definition":
                return _Source(node)
            if node.type == "command" and any(map(_is_input, node.named_children)):
                return _Source(node, own=node == command)
            given = [child for child in node.named_children if child != before and _is_input(child)]
            if node.type == "redirected_statement" and given:
                target = _last(node.named_children[0])
                if target.start_byte <= command.start_byte < target.end_byte:
                    return _Source(target, own=target == command, file=_is_file(given[-1]))
            if node.type == "pipeline" and before != node.named_children[0]:
                target = before.named_children[0] if before.type == "redirected_statement" else before
                return _Source(target, own=target == command, file=False)
            before = node
        return _Source(self._root)


def _is_input(node: Node) -> bool:
    """Whether a redirection gives standard input."""
    if node.type in ("herestring_redirect", "heredoc_redirect"):
        return True
    return node.type == "file_redirect" and _INPUT.match(source_of(node)) is not None


def _is_file(node: Node) -> bool:
    """Whether a redirection gives a file, not text or the output of a command, which come by a pipe."""
    return node.type == "file_redirect" and "<(" not in source_of(node)


def _last(node: Node) -> Node:
    """The part of `a | b < file` that reads the file."""
    while node.type in ("pipeline", "list") and node.named_children:
        node = node.named_children[-1]
    return node


def _descriptor(read: Node) -> str | None:
    """The descriptor from which a command reads, `read -u 3`, `read … <&3`; None: its standard input."""
    found = _OTHER.search(_around(read))
    return None if found is None else found[1] or found[2]


def _around(command: Node) -> str:
    """The text of a command with its redirections."""
    up = command.parent
    return source_of(up if up is not None and up.type == "redirected_statement" else command)
