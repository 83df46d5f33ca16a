"""Verdicts in which the agent's word is taken for it: a reward that it wrote, its own checksums."""

import posixpath
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import MOVES, AgentText
from orchestrator.tasks.traps.fixed_text import WRAPPER
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.paid_text import JUDGES, REWARD, PaidText, is_reward
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.somewhere import AWKS, is_wanted
from orchestrator.tasks.traps.transforms import data_files, programs_of
from orchestrator.tasks.traps.tree import every, is_safe, listed, operands, options, plain, source_of

KEEPS: Final = listed(
    "echo printf cat head tail cut sed jq tr grep tee nl tac sort uniq xargs curl wget nc dd"
)
"""Commands whose output is what they read or are given."""
_SUMS: Final = re.compile(r"(?:md5|sha\d+|b2|ck)sum|rhash")
_COPIES: Final = MOVES | {"rsync", "scp"}
_WRITES: Final = frozenset({"-o", "-O", "--output", "--output-document"})
"""Options in front of the file that a command writes."""
_COMPARES: Final = re.compile(r"[=!<>]=|[~<>]")
_LINE: Final = re.compile(r"\bN[RF]\s*==\s*\d+")


def pays_agent_text(node: Node, text: PaidText) -> bool:
    """`jq .score out > /logs/verifier/reward.txt`: a redirection, or a command that copies, whose content is the agent's."""
    if node.type == "redirected_statement":
        if not any(is_reward(target.named_children[-1], text) for target in _written(node)):
            return False
        if source_of(node.named_children[0]) == "exec":
            return any(_passes_on(after, text) for after in _after(node))
        body = _last_of(node.named_children[0])
        return _passes_on(body, text, around=[body, *node.named_children[1:]])
    found = words(node) if node.type == "command" else []
    if not found:
        return False
    name, files = text.name(found[0]), operands(found[1:])
    if name == "dd":
        return _copies_blocks(node, files, text)
    if name in KEEPS and any(
        plain(option) in _WRITES and is_reward(place, text) for option, place in pairwise(found[1:])
    ):
        return text.gives(node)
    if not files or not is_reward(files[-1], text):
        return False
    if name != "tee":
        return name in _COPIES and any(map(text.unsafe, files[:-1]))
    pipeline = node.parent
    before = [] if pipeline is None or pipeline.type != "pipeline" else pipeline.named_children[:-1]
    return bool(before) and _passes_on(before[-1], text, around=before)


def _written(node: Node) -> list[Node]:
    """The redirections of a statement's output."""
    redirects = [c for c in node.named_children if c.type == "file_redirect"]
    return [c for c in redirects if re.match(r"\s*(?:1|&)?>(?!&)", source_of(c))]


def _after(node: Node) -> Iterator[Node]:
    """The statements behind `exec > file` that write to it, too."""
    after = node.next_named_sibling
    while after is not None:
        if after.type in ("command", "pipeline"):
            yield after
        after = after.next_named_sibling


def _passes_on(body: Node, text: PaidText, around: list[Node] | None = None) -> bool:
    """Whether commands print text of the agent's: the last one is a program of the agent's, or prints what it reads."""
    commands = [n for n in every(body) if n.type == "command"]
    last = words(commands[-1]) if commands else []
    if not last:
        return False
    name = text.name(last[0])
    keeps = name in KEEPS or text.wrapped(commands[-1]) or (name in AWKS and _prints_fields(name, last[1:]))
    return keeps and any(map(text.gives, around or [body]))


def _prints_fields(name: str, arguments: list[Node]) -> bool:
    """`awk '{ print $1 / 10 }' out`: a number of the agent's, without a comparison, and without a file of the tests."""
    programs = [_LINE.sub("", plain(one)) for one in programs_of(name, arguments)]
    own = not any(is_safe(plain(file)) for file in data_files(name, arguments))
    return own and any(re.search(r"\$\w", one) and not _COMPARES.search(one) for one in programs)


def _copies_blocks(node: Node, files: list[Node], text: PaidText) -> bool:
    """`dd if=out of=/logs/verifier/reward.txt`"""
    given = {text.text(file).partition("=")[0]: file for file in files}
    target, source = (text.text(given[key]).partition("=")[2] if key in given else "" for key in ("of", "if"))
    if not REWARD.search(target):
        return False
    own = bool(source) and (
        text.carries(given["if"]) or not (is_safe(source) or source.startswith((*JUDGES, "$")))
    )
    return own or (not source and text.stdin(node) is not None)


def by_own_files(node: Node, name: str, arguments: list[Node], text: AgentText) -> Iterator[Rule]:
    """`sha256sum -c sums`, `cmp out expected`: the agent can write both sides."""
    compares = name in ("cmp", "diff")
    if not compares and _SUMS.fullmatch(name) is None:
        return
    checks = bool({"c", "--check"} & {*options(arguments).split(), *options(arguments)})
    files = [
        a
        for a in operands(arguments)
        if _is_own(a, text) and posixpath.normpath(text.text(a)) not in text.made
    ]
    if compares and any(
        map(is_wanted, (c for file in files for c in text.compared.get(text.text(file), ())))
    ):
        return
    both = len(files) + sum(_prints_own(a, files, text) for a in operands(arguments)) == 2
    if (both if compares else checks and bool(files)) and is_wanted(node):
        yield Rule.BOTH_SIDES


def _prints_own(word: Node, files: list[Node], text: AgentText) -> bool:
    """`<(sort out)`, `<(… ./prog)`: text of the agent's, unless it is made of the other file, as by a round trip."""
    source = source_of(word)
    known = "/tests/" in source or any(text.text(file) in source for file in files)
    return word.type == "process_substitution" and not known and text.gives(word)


def started_by_wrapper(command: Node, text: AgentText) -> list[Node]:
    """The words of the program that `$PENSTOCK_UNTRUSTED SECONDS` starts."""
    found = [c for c in command.named_children if c.type not in ("variable_assignment", "file_redirect")]
    named = [at for at, word in enumerate(found) if WRAPPER in source_of(word)]
    held = [
        at
        for at, word in enumerate(found)
        if source_of(word) in text.functions or any(inner.type == "variable_name" for inner in every(word))
    ]
    rest = found[min(named or held, default=len(found)) + 1 :]
    return rest[1:] if rest and plain(rest[0]).isdigit() else rest


def _last_of(node: Node) -> Node:
    """The part of `a && b > file` whose output goes to the file. Of an `if` all branches write; the last one stands for them."""
    if node.type == "list":
        return _last_of(node.named_children[-1])
    if node.type in ("if_statement", "compound_statement", "subshell", "else_clause") and node.named_children:
        return _last_of(node.named_children[-1])
    return node


def _is_own(word: Node, text: AgentText) -> bool:
    path = text.text(word)
    plain_word = word.type in (
        "word",
        "string",
        "raw_string",
        "concatenation",
        "simple_expansion",
        "expansion",
    )
    return plain_word and not path.startswith(("$", "-", *JUDGES)) and text.unsafe(word)
