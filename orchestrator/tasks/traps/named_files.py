"""Files that the judge reads and whose name is text of the agent's: the answer `/tests/want` is right without the work."""

import re
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.fixed_text import WRAPPER
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.own_word import KEEPS
from orchestrator.tasks.traps.somewhere import AWKS, GREPS
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
    "cat head tail cmp diff sed awk gawk mawk sort jq cut grep egrep fgrep tac nl uniq paste join comm xxd od base64 rev md5sum sha1sum "
    "sha224sum sha256sum sha384sum sha512sum b2sum cksum sum"
)
_KEEPS: Final = KEEPS | AWKS
_CURL: Final = "curl"
_VALUED: Final = {
    **dict.fromkeys(("head", "tail"), "nc"),
    **dict.fromkeys(GREPS, "mABCdDef"),
    "cut": "bcdf", "sort": "kotST", "od": "ANStwj", "xxd": "clnosR", "cmp": "in", "diff": "CFILSUWXx", "uniq": "fsw", "paste": "d",
    "join": "12aejotv", "nl": "bdfhilnsvw", "tac": "s", "base64": "w", "curl": "ACDEFHKPQTUXYbcdehmortuwxyz",
}  # fmt: skip
"""The letters of options with a value."""
_LONG: Final = listed(
    "lines bytes sleep-interval fields characters delimiter delimiters output-delimiter key field-separator output buffer-size "
    "temporary-directory label ignore-initial ignore-matching-lines exclude exclude-from read-bytes skip-bytes address-radix format "
    "width regexp file max-count after-context before-context context skip-fields skip-chars check-chars separator wrap body-numbering"
)
"""Long options with a value."""
_CURL_FLAGS: Final = listed(
    "silent show-error fail fail-with-body location insecure get head include verbose compressed globoff ipv4 ipv6 http1.1 http2 no-buffer "
    "path-as-is raw netrc digest basic anyauth fail-early create-dirs no-keepalive no-progress-meter progress-bar parallel location-trusted"
)
"""Long options of curl without a value; the others have one."""
_PATTERNS: Final = re.compile(r"-\w*[ef]|--(?:regexp|file)\b.*")
_SET: Final = re.compile(r"\w+=")
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
        if name == _CURL:
            return any(
                self._is_address(w) and self._is_named(w) for w in operands(_without_values(name, found[1:]))
            )
        return name in _READS and any(map(self._is_named, _files(name, found[1:])))

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
        path = self._text.text(word).removeprefix("file://")
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
        """Whether the agent's text may begin an address with `file:`: `file://$got`, `$got`, but not `http://localhost:$port/x`."""
        if self._text.text(word).startswith("file:"):
            return True
        first = next((n for n in every(word) if n.type.endswith(("expansion", "substitution"))), None)
        return first is not None and plain(word).startswith(source_of(first)) and self._is_agents(first)


def _without_values(name: str, arguments: list[Node]) -> list[Node]:
    """The arguments of a command without the values of its options: without `"$n"` of `head -n "$n"`."""
    kept, is_value = [], False
    for word in arguments:
        if is_value:
            is_value = False
        else:
            kept.append(word)
            is_value = _has_value(name, plain(word))
    return kept


def _has_value(name: str, option: str) -> bool:
    """Whether the next word is the value of an option: `-n`, `-sn`, `--lines`, but not `-n5` or `--lines=5`."""
    if option.startswith("--"):
        long = option[2:]
        return (
            bool(long) and "=" not in long and (long not in _CURL_FLAGS if name == _CURL else long in _LONG)
        )
    letters = _VALUED.get(name)
    return letters is not None and re.fullmatch(rf"-[^-{letters}]*[{letters}]", option) is not None


def _files(name: str, arguments: list[Node]) -> list[Node]:
    """The files that a command reads, without the values of options and the variables of awk."""
    if name in GREPS and any(_PATTERNS.fullmatch(plain(word)) for word in arguments):
        return operands(_without_values(name, arguments))
    files = data_files(name, _without_values(name, arguments))
    return [word for word in files if name not in AWKS or not _SET.match(source_of(word))]
