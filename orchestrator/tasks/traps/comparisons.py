"""The rules for `[`, `[[` and `case`."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.somewhere import decides, is_wanted
from orchestrator.tasks.traps.tree import above, every, operands, plain, quoted, source_of

_CALCULATES: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_TIMES: Final = re.compile(r" -(nt|ot) ")
_NEWER: Final = re.compile(r"-(?:newer\w*|anewer|cnewer|[acm]min|[acm]time)")
_TIMED: Final = re.compile(r"%[XYZWxyzw](?!\w)")
_NAMED: Final = re.compile(r"\$\{?(\w+)")
_SHORTER: Final = re.compile(
    r"\"?\$\{(\w+)(?:##?\*[^}]+|%%?[^}]+\*|//?[^}]+)\}\"?\s+(!=|==?)\s+\"?\$\{?(\w+)\}?\"?\s"
)
_NOTHING_LEFT: Final = re.compile(r"\s-z\s+\"?\$\{(\w+)(?:##|%%|//?)\*[^}*/]+\*/?\}")
_CUTS: Final = frozenset({"/", "//", "/#", "/%", "#", "##", "%", "%%"})
_BELOW: Final = re.compile(r"\s*/[\w./-]*/\*")
"""`[[ "$file" == /app/* ]]` asks where a path leads."""
_QUOTED: Final = re.compile(r'"[^"]*"|\'[^\']*\'')


def in_test(node: Node, text: AgentText) -> Iterator[Rule]:
    """`[ … ]` and `[[ … ]]`."""
    if not source_of(node).startswith("[["):
        yield from in_old_test(node, node.named_children, text)
        return
    if _TIMES.search(source_of(node)):
        yield Rule.TIMES
    if _cuts_by_answer(node, text):
        yield Rule.PATTERN
    if _cuts_answer(node, text):
        yield Rule.SOMEWHERE
    for expression in every(node):
        if expression.type != "binary_expression" or len(expression.children) < 3:
            continue
        left, operator, *rest = expression.children
        if not rest or operator.type in ("&&", "||"):
            continue
        sign = source_of(operator)
        if sign in _CALCULATES and (text.carries(left) or text.carries(rest[-1])):
            yield Rule.ARITHMETIC
        elif sign in ("==", "=", "!=", "=~"):
            yield from _matched(left, sign, rest, text)
            part = sign in ("==", "=", "!=") and _is_part(left, "".join(map(source_of, rest)), node, text)
            if part and is_wanted(node, holds=sign != "!="):
                yield Rule.EMPTY


def by_times(node: Node, name: str, arguments: list[Node], text: AgentText) -> bool:
    """`[ "$(stat -c %Y out)" -gt … ]`, `$(date -r out)`, `find . -newer /tests/x`: times of the agent's files, in a condition."""
    given = [plain(word) for word in arguments]
    if name == "find":
        found = any(_NEWER.fullmatch(word) for word in given) and text.finds_own(node)
    elif name == "date":
        files = [b for a, b in pairwise(arguments) if plain(a) in ("-r", "--reference")]
        found = any(map(text.unsafe, files))
    else:
        forms = [word for word in given if _TIMED.search(word)] if name == "stat" else []
        found = bool(forms) and any(text.unsafe(a) for a in operands(arguments) if plain(a) not in forms)
    if not found:
        return False
    around = [*above(node)]
    names = [source_of(a.named_children[0]) for a in around if a.type == "variable_assignment"]
    if any(re.search(rf"\b{name}\b", source) for name in names for _, source in text.conditions):
        return True
    pipeline = next((a for a in around if a.type == "pipeline"), None)
    searched = pipeline is not None and "grep" in source_of(pipeline.named_children[-1])
    return (
        searched
        or any(a.type == "test_command" for a in around)
        or any(n.id in {a.id for a in around} for n, _ in text.conditions)
    )


def in_old_test(node: Node, arguments: list[Node], text: AgentText) -> Iterator[Rule]:
    """`[ … ]` and `test …`, which parse their arguments again."""
    if _TIMES.search(source_of(node)):
        yield Rule.TIMES
    if any(_cuts_by_answer(child, text) for child in arguments):
        yield Rule.PATTERN
    if _cuts_answer(node, text):
        yield Rule.SOMEWHERE
    if any(_unquoted_agent_text(child, text) for child in arguments):
        yield Rule.OPERATORS


def in_case(node: Node, text: AgentText) -> Iterator[Rule]:
    """One pattern of a `case`."""
    if not node.named_children or node.parent is None:
        return
    pattern = node.named_children[0]
    if _names_agent_text(pattern, text):
        yield Rule.PATTERN
    bare = _QUOTED.sub("", source_of(pattern))
    part = "*" in bare and source_of(pattern) != "*" and not _BELOW.fullmatch(bare)
    if text.carries(node.parent.named_children[0]) and part:
        yield Rule.SOMEWHERE
    whole = source_of(node).partition(")")[0]
    subject = node.parent.named_children[0]
    if _is_part(subject, whole, node, text) and any(map(decides, every(node))):
        yield Rule.EMPTY


def _is_part(left: Node, pattern: str, node: Node, text: AgentText) -> bool:
    """`[[ "$want" == *"$got"* ]]`: the quoted text of the agent's is looked for, and nothing else in the script looks at it."""
    if text.carries(left) or not re.fullmatch(r"\s*\*+\s*", _QUOTED.sub("", pattern)):
        return False
    named = {name for found in _QUOTED.findall(pattern) for name in _NAMED.findall(found)}
    if not named or not named <= text.names:
        return False
    used = re.compile(rf"\$\{{?(?:{'|'.join(named)})\b")
    return not any(used.search(source) for test, source in text.conditions if test != node)


def _cuts_by_answer(node: Node, text: AgentText) -> bool:
    """`[ "${want/$got/}" = "" ]`: the agent's text is the pattern of what is cut out."""
    return any(
        inner.type == "expansion"
        and any(child.type in _CUTS for child in inner.children)
        and not {source_of(c) for c in inner.named_children if c.type == "variable_name"} & text.names
        and any(_names_agent_text(c, text) for c in inner.named_children if c.type != "variable_name")
        for inner in every(node)
    )


def _cuts_answer(node: Node, text: AgentText) -> bool:
    """`[ "${got#*42}" != "$got" ]`, `[ -z "${got##*42*}" ]`: something is there to be cut out."""
    found = _SHORTER.search(source_of(node))
    if found is not None and found[1] == found[3] and found[1] in text.names:
        return is_wanted(node, holds=found[2] == "!=")
    none = _NOTHING_LEFT.search(source_of(node))
    return none is not None and none[1] in text.names and is_wanted(node)


def _names_agent_text(pattern: Node, text: AgentText) -> bool:
    """Whether an unquoted variable in a pattern that the parser reads as one word holds agent text."""
    if pattern.type not in ("regex", "extglob_pattern"):
        return _unquoted_agent_text(pattern, text)
    return bool(text.names.intersection(_NAMED.findall(_QUOTED.sub("", source_of(pattern)))))


def _matched(left: Node, sign: str, right: list[Node], text: AgentText) -> Iterator[Rule]:
    if any(_names_agent_text(node, text) for node in right):
        yield Rule.PATTERN
    source = "".join(map(source_of, right))
    whole = source.lstrip().startswith("^") and source.rstrip().endswith("$")
    loose = not whole if sign == "=~" else "*" in _QUOTED.sub("", source) and not _BELOW.fullmatch(source)
    if text.carries(left) and sign != "!=" and loose:
        yield Rule.SOMEWHERE


def _unquoted_agent_text(node: Node, text: AgentText) -> bool:
    if quoted(node):
        return False
    if node.type in ("simple_expansion", "expansion", "command_substitution"):
        return text.carries(node)
    return any(_unquoted_agent_text(child, text) for child in node.named_children)
