"""Programs that run a program: from a file, from a text, or from their input."""

import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.commands import INTERPRETERS, SHELLS
from orchestrator.tasks.traps.inline_texts import opens_names, runs_agents_text
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.programs import is_fetched
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.tree import every, is_safe, plain, source_of

_PYTHONS: Final = frozenset({"python", "pypy"})
_EXPANDED: Final = re.compile(r"\$(?:\w+|\{[^}]*\}|\([^()]*\))")  # with any value: PROGRAM_TEXT covers it
_LOAD: Final = frozenset({"perl", "ruby", "node", "nodejs"})
_LOADED: Final = re.compile(r"(?:^|\s)(?:-I\s*|(?:-r|--require|--import)[\s=]*(?=[./]))([^\s-]\S*)")
"""Directories and files from which these load modules."""
_OWN_MODULE: Final = (
    r"""\\?["'](?:node:)?(?:assert|buffer|crypto|dns|events|fs|http|https|net|os|path|perf_hooks|process|querystring"""
    r"""|readline|stream|string_decoder|timers|tls|tty|url|util|v8|zlib)(?:/promises)?\\?["']"""
)
_LOADS_OWN: Final = re.compile(
    rf"\b(?:require|import)\(\s*{_OWN_MODULE}\s*\)|\bimport\s+[\w\s{{}},*]+?\s+from\s+{_OWN_MODULE}"
)
_LOADS_MODULE: Final = re.compile(r"\b(?:require|import|createRequire|mainModule|eval|Function|module|vm)\b")
_EXPANSIONS: Final = ("simple_expansion", "expansion", "command_substitution", "concatenation")
_STDIN: Final = ("-", "/dev/stdin", "/dev/fd/0")


def started(name: str, arguments: list[Node]) -> tuple[str, list[Node]]:
    """The letters of an interpreter's own options, and the words after them: program and arguments, or text or module and arguments."""
    inline, valued = INTERPRETERS[name]
    letters, at = "", 0
    while at < len(arguments):
        word = plain(arguments[at])
        if not word.startswith("-") or word == "-":
            break
        at += 1
        if word.startswith("--"):
            continue
        letters += word[1:]
        if set(inline) & set(word[1:]) or (name in _PYTHONS and "m" in word[1:]):
            break
        if word[-1] in valued and len(word) == 2:
            at += 1
    return letters, arguments[at:]


def runs(node: Node, name: str, arguments: list[Node], text: AgentText) -> Iterator[Rule]:
    """The rules of an interpreter."""
    letters, rest = started(name, arguments)
    if name in SHELLS and "n" in letters:  # it only checks the syntax
        return
    inline = bool(set(INTERPRETERS[name][0]) & set(letters))
    module = name in _PYTHONS and "m" in letters and not inline
    if inline:
        made = bool(rest) and rest[0].type != "raw_string" and text.carries(rest[0])
        if made or runs_agents_text(node, name, rest, text):
            yield Rule.PROGRAM_TEXT
        if name == "perl" and opens_names(letters, rest, text):
            yield Rule.NAMES
    elif not module and (not rest or plain(rest[0]) in _STDIN):
        fed = text.stdin(node)
        if fed is not None and fed.type in ("herestring_redirect", "heredoc_redirect"):
            yield Rule.PROGRAM_TEXT
        elif fed is not None and not is_fetched(node):
            yield Rule.SOURCED if name in SHELLS else Rule.AGENT_PROGRAM
    elif not module and text.unsafe(rest[0]):
        yield Rule.AGENT_PROGRAM
    if name in _LOAD and any(not is_safe(path) for path in _LOADED.findall(" ".join(map(plain, arguments)))):
        yield Rule.NOT_ISOLATED
    if name in _LOAD and "--test" in map(plain, arguments) and not rest:
        yield Rule.BUILD_TOOL
    if text.in_a_safe_directory(node):
        return
    if name in _PYTHONS and not set("IP") & set(letters):
        if inline or module or not rest or plain(rest[0]) == "-":
            yield Rule.NOT_ISOLATED
    elif name in ("node", "nodejs") and inline and not (rest and _loads_only_nodes_own(rest[0])):
        yield Rule.NOT_ISOLATED


def _loads_only_nodes_own(program: Node) -> bool:
    """Whether a program in a script is known, and loads no modules but those of node, which no directory replaces."""
    if any(inner.type in _EXPANSIONS for inner in every(program)):
        return False
    return _LOADS_MODULE.search(_LOADS_OWN.sub("", plain(program))) is None


def module_of(name: str, arguments: list[Node]) -> list[Node]:
    """The module of `python3 -m`, with its arguments."""
    if name not in _PYTHONS:
        return []
    letters, rest = started(name, arguments)
    return rest if "m" in letters and "c" not in letters else []


def inline_programs(node: Node, text: AgentText) -> Iterator[tuple[str, int]]:
    """Python programs in the script, with the lines at which they begin: `python3 -c '…'`, here-documents."""
    found = words(node)
    if not found or text.name(found[0]) not in _PYTHONS:
        return
    letters, rest = started(text.name(found[0]), found[1:])
    if "c" in letters and rest:
        program: Node | None = rest[0]
    elif "m" not in letters and (not rest or plain(rest[0]) in _STDIN):
        program = _here_document(node)
    else:
        program = None
    if program is None or program.type in ("simple_expansion", "expansion"):
        return
    source = source_of(program) if program.type == "heredoc_body" else plain(program)
    raw = program.type == "raw_string" or (program.type == "heredoc_body" and not program.named_children)
    if not raw:
        source = _EXPANDED.sub("_", re.sub(r'\\([\\"$`])', r"\1", source))
    yield source, program.start_point[0] + 1


def _here_document(node: Node) -> Node | None:
    for parent in (node, node.parent):
        for child in parent.children if parent is not None else ():
            if child.type == "heredoc_redirect":
                return next((c for c in child.children if c.type == "heredoc_body"), None)
    return None
