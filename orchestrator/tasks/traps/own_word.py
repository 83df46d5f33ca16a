"""Verdicts in which the agent's word is taken for it: a reward that it wrote, its own checksums."""

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import MOVES, AgentText
from orchestrator.tasks.traps.fixed_text import WRAPPER
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.paid_text import JUDGES, PaidText, is_reward
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.somewhere import is_wanted
from orchestrator.tasks.traps.tree import every, listed, operands, options, plain, source_of

_KEEPS: Final = listed("echo printf cat head tail cut sed jq tr grep tee nl tac sort uniq xargs")
"""Commands whose output is what they read or are given."""
_SUMS: Final = re.compile(r"(?:md5|sha\d+|b2|ck)sum|rhash")


def pays_agent_text(node: Node, text: PaidText) -> bool:
    """`jq .score out > /logs/verifier/reward.txt`: a redirection, or a command that copies, whose content is the agent's."""
    if node.type == "redirected_statement":
        target = next((c for c in node.named_children if c.type == "file_redirect"), None)
        if target is None or not is_reward(target.named_children[-1], text):
            return False
        body = _last_of(node.named_children[0])
        commands = [n for n in every(body) if n.type == "command"]
        last = words(commands[-1]) if commands else []
        return bool(last) and text.name(last[0]) in _KEEPS and text.gives(body)
    found = words(node) if node.type == "command" else []
    if not found:
        return False
    name, files = text.name(found[0]), operands(found[1:])
    if not files or not is_reward(files[-1], text):
        return False
    if name != "tee":
        return name in MOVES and any(map(text.unsafe, files[:-1]))
    pipeline = node.parent
    before = [] if pipeline is None or pipeline.type != "pipeline" else pipeline.named_children[:-1]
    commands = [n for part in before for n in every(part) if n.type == "command"]
    printed = words(commands[-1]) if commands else []
    return bool(printed) and text.name(printed[0]) in _KEEPS and any(map(text.gives, before))


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
    if (len(files) == 2 if compares else checks and bool(files)) and is_wanted(node):
        yield Rule.BOTH_SIDES


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
