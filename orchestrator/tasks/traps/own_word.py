"""Verdicts in which the agent's word is taken for it: a reward that it wrote, its own checksums, the exit status of its own program."""

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import MOVES, AgentText
from orchestrator.tasks.traps.fixed_text import WRAPPER
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.paid_text import JUDGES, PaidText
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.somewhere import decides, is_wanted
from orchestrator.tasks.traps.tree import above, every, listed, operands, options, plain, source_of

REWARD: Final = re.compile(r"/logs/verifier/reward\.(?:txt|json)$")
_KEEPS: Final = listed("echo printf cat head tail cut sed jq tr grep tee nl tac sort uniq xargs")
"""Commands whose output is what they read or are given."""
_SUMS: Final = re.compile(r"(?:md5|sha\d+|b2|ck)sum|rhash")
_CONDITIONS: Final = frozenset(
    {"if_statement", "elif_clause", "case_item", "while_statement", "for_statement"}
)
_CAPTURES: Final = frozenset({"command_substitution", "process_substitution", "pipeline"})


def pays_agent_text(node: Node, text: PaidText) -> bool:
    """`jq .score out > /logs/verifier/reward.txt`: a redirection, or a command that copies, whose content is the agent's."""
    if node.type == "redirected_statement":
        target = next((c for c in node.named_children if c.type == "file_redirect"), None)
        if target is None or not REWARD.search(text.text(target.named_children[-1])):
            return False
        body = _last_of(node.named_children[0])
        commands = [n for n in every(body) if n.type == "command"]
        last = words(commands[-1]) if commands else []
        return bool(last) and text.name(last[0]) in _KEEPS and text.gives(body)
    found = words(node) if node.type == "command" else []
    if not found:
        return False
    name, files = text.name(found[0]), operands(found[1:])
    if not files or not REWARD.search(text.text(files[-1])):
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


def by_status(node: Node) -> bool:
    """Whether success of this command alone, under no other condition, is success of the tests: `… ./prog && ok=1`."""
    if any(a.type in _CAPTURES for a in above(node)):
        return False
    child = node
    for ancestor in above(node):
        if ancestor.type == "list":
            *conditions, last = ancestor.named_children
            signs = {c.type for c in ancestor.children} & {"&&", "||"}
            if signs != {"&&"} or not all(c == child or _only_runs(c) for c in conditions):
                return False
            if last != child and any(map(decides, _unconditional(last))):
                return True
            if last != child and not _only_runs(last):
                return False
        elif ancestor.type == "if_statement":
            condition, *then = ancestor.named_children
            body = [c for c in then if c.type not in ("elif_clause", "else_clause")]
            return condition == child and any(decides(n) for part in body for n in _unconditional(part))
        elif ancestor.type != "redirected_statement":
            return False
        child = ancestor
    return False


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


def _only_runs(node: Node) -> bool:
    """Whether a condition only runs programs under the wrapper, or goes to a directory."""
    return all(
        WRAPPER in source_of(n) or plain(n.named_children[0]) in ("cd", "true")
        for n in every(node)
        if n.type in ("command", "test_command") and n.named_children
    )


def _unconditional(node: Node) -> Iterator[Node]:
    yield node
    if node.type not in _CONDITIONS and node.type != "list":
        for child in node.named_children:
            yield from _unconditional(child)
