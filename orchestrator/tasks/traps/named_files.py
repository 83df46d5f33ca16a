"""Files that the judge reads and whose name is text of the agent's: the answer `/tests/want` is right without the work."""

import re
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.fixed_text import WRAPPER
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.own_word import KEEPS
from orchestrator.tasks.traps.somewhere import AWKS
from orchestrator.tasks.traps.transforms import data_files
from orchestrator.tasks.traps.tree import (
    above,
    every,
    is_safe,
    listed,
    operands,
    plain,
    source_of,
    variables_in,
)

_READS: Final = listed(
    "cat head tail cmp diff sed awk gawk mawk sort jq tr cut grep egrep fgrep tac nl uniq paste join comm xxd od base64 rev md5sum sha1sum "
    "sha224sum sha256sum sha384sum sha512sum b2sum cksum sum"
)
_KEEPS: Final = KEEPS | AWKS
_FETCHES: Final = frozenset({"curl", "wget"})
_RESOLVES: Final = re.compile(r"\b(?:realpath|readlink|basename|sed|tr\b[^|)]*/)")
"""Commands that show where a path leads, or that may take its directories away."""
_EQUAL: Final = re.compile(r"\s(?:==?|=~|!=|-ef)\s")
_SUBSTITUTION: Final = re.compile(r"\$\([^()]*\)|`[^`]*`")


class NamedFiles:
    """The files of one script that text of the agent's names. What the script itself lists (`ls`, `find`, `*`) is another rule's."""

    def __init__(self, root: Node, text: AgentText) -> None:
        self._text = text
        self._values: dict[str, list[Node | None]] = {}
        known: set[str] = set()
        for node in every(root):
            if node.type == "variable_assignment" and len(node.named_children) > 1:
                self._values.setdefault(source_of(node.named_children[0]), []).append(node.named_children[1])
            elif node.type == "for_statement":
                self._values.setdefault(source_of(node.named_children[0]), []).append(None)
            elif node.type == "case_statement":
                known |= variables_in(node.named_children[0])
            elif node.type == "command" and (found := words(node)):
                if plain(found[0]) == "read":
                    self._learn(node, found)
                elif _RESOLVES.match(source_of(node)):
                    known |= variables_in(node.parent if node.parent is not None else node)
        for _, source in text.conditions:
            if _EQUAL.search(source):
                known |= set(re.findall(r"\$\{?(\w+)", _SUBSTITUTION.sub("", source)))
        self._known = known

    def reads(self, node: Node) -> bool:
        """Whether a command or a redirection reads a file that the agent's text names: `cat "$got"`, `md5sum < "$got"`, `curl "file://$got"`."""
        if node.type == "file_redirect":
            command = next((a for a in above(node) if a.type in ("command", "program")), node)
            reads = source_of(node).lstrip().startswith("<") and WRAPPER not in source_of(command)
            return reads and any(
                self._is_named(c) for c in node.named_children if c.type != "file_descriptor"
            )
        if node.type != "command" or self._text.wrapped(node) or not (found := words(node)):
            return False
        name = self._text.name(found[0])
        if name in _FETCHES:
            return any(self._is_named(w) and not self._is_address(w) for w in operands(found[1:]))
        return name in _READS and any(map(self._is_named, data_files(name, found[1:])))

    def _learn(self, command: Node, found: list[Node]) -> None:
        """`read -r name < out`"""
        fed = self._text.read_in(command, found)
        for word in operands(found[1:]):
            own = fed if fed is not None and self._is_content(fed) else None
            self._values.setdefault(plain(word), []).append(own)

    def _is_named(self, word: Node) -> bool:
        """Whether a path has text of the agent's in it, and is not in a place of the tests or one that the script made."""
        if word.type == "process_substitution":
            return False
        path = self._text.text(word)
        if is_safe(path.partition("$")[0].rstrip("/")) or self._text.is_temporary(path):
            return False
        return any(
            self._is_agents(inner)
            for inner in every(word)
            if inner.type.endswith(("expansion", "substitution"))
        )

    def _is_agents(self, node: Node) -> bool:
        if node.type == "command_substitution":
            return self._is_content(node)
        name = re.match(r"\$\{?(\w+)\}?", source_of(node))
        if name is None or name[0] != source_of(node) or name[1] in self._known:
            return False
        values = self._values.get(name[1], [])
        return bool(values) and all(one is not None and self._is_content(one) for one in values)

    def _is_content(self, node: Node) -> bool:
        """Whether a part of a script is what a file of the agent's holds: `$(head -n 1 out)`, `< out`."""
        if node.type == "file_redirect":
            return self._is_left(node.named_children[-1])
        if _RESOLVES.search(source_of(node)):
            return False
        commands = [n for n in every(node) if n.type == "command"]
        printed = [n for n in commands if self._text.wrapped(n)]
        commands = [n for n in commands if n not in printed]
        if any(self._text.name(w[0]) not in _KEEPS for n in commands if (w := words(n))):
            return False
        reads = [
            n for n in every(node) if n.type == "file_redirect" and source_of(n).lstrip().startswith("<")
        ]
        files = [a for n in commands if (w := words(n)) for a in data_files(self._text.name(w[0]), w[1:])]
        return bool(printed) or any(map(self._is_left, [*files, *(n.named_children[-1] for n in reads)]))

    def _is_left(self, file: Node) -> bool:
        """Whether a file is one that the agent left, not one that the script wrote."""
        path = self._text.text(file)
        made = path in self._text.made or self._text.is_temporary(path) or path.startswith(("$", "/tmp", "-"))
        return not made and not path.isdigit() and self._text.unsafe(file)

    def _is_address(self, word: Node) -> bool:
        """`http://localhost:$port/x`: the agent chooses a part of an address, not a file."""
        return re.match(r"[\"']?(?:https?://|localhost|127\.)", source_of(word)) is not None
