"""Places where the right text counts wherever it stands: an answer that lists everything holds it."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.tree import above, every, operands, options, plain, source_of, variables_in

GREPS: Final = frozenset({"grep", "egrep", "fgrep", "rg", "zgrep"})
AWKS: Final = frozenset({"awk", "gawk", "mawk", "nawk"})
_ONE_LINE: Final = re.compile(r"\b(?:head|tail) (?:-n ?)?-?1\b")
_EVERY_LINE: Final = frozenset({"", ".", "^", "$"})
_NOT_EMPTY: Final = r"(?:-n\s+|\[\[?\s+(?:!\s+)?)[\"']?{}[\"']?\s*(?:\]|&&|\|\|)"
_EMPTY: Final = r"-z\s+[\"']?{}"
_NONE: Final = r"(?:-z\s+[\"']?{0}|{0}[\"']?\s*==?\s*(?:\"\"|''))"
_COUNTED: Final = r"{}[\"']?\s*(?:-ge|-gt|-ne|!=|>=?|(?:-eq|==?)\s*+[\"']?+(?!0\b))"
_AT_LEAST: Final = r"{}[\"']?\s*(?:-ge|-gt|-ne|!=|>=?)"
_COUNTED_NONE: Final = r"{}[\"']?\s*(?:-eq|==?)\s*[\"']?0\b"
_EQUAL: Final = r"{}[\"']?\s*(?:==?|-eq)\s*[\"']?[^\s\"'\]]"
_LITERAL: Final = re.compile(r"\^?[\w =:@/,-]+\$?")
_FAILS: Final = re.compile(
    r"""\b(?:exit|return)\s+[1-9]|=["']?(?:0|false|no|fail(?:ed)?)\b|\b(?:echo|printf)\s+(?:-n\s+|["']?%s["']?\s+)?["']?0(?:\.0)?(?:\\n)?["']?\s*[>|]|\bfail\w*|\bfalse\b""",
    re.I,
)
_FLAG: Final = re.compile(
    r"(?:(?<![\w)])/(?:[^/\\\n]|\\.)+/|==|~)[^{}]*\{[^}]*(?:\b\w+ *= *(?:1|\"(?:yes|ok|true)\")(?![\d.])|\bexit(?: *\(?0\)?)? *[;}])"
)
_TRUE: Final = re.compile(r"""["']?(?:1|true|yes|y|ok|pass|passed|PASS|found)["']?""")
_EQUALS: Final = frozenset({"=", "==", "=~", "-eq"})


def by_grep(node: Node, arguments: list[Node], text: AgentText) -> Iterator[Rule]:
    """`grep -q 42 out`, and uses of what grep prints or counts."""
    letters, files = options(arguments), operands(arguments)
    by_file = [a for before, a in pairwise(arguments) if re.fullmatch(r"-[a-zA-Z]*f|--file", plain(before))]
    if any(text.unsafe(a) for a in by_file) or any(text.carries(a) for a in files[:1]):
        yield Rule.GREP_BY_ANSWER
        return
    pipeline = next((ancestor for ancestor in above(node) if ancestor.type == "pipeline"), None)
    around = [] if pipeline is None else pipeline.named_children
    before = [part for part in around if part.end_byte <= node.start_byte]
    pattern = plain(files[0]) if files else ""
    whole_line = "x" in letters or (pattern.startswith("^") and pattern.endswith("$"))
    if "v" in letters or (whole_line and any(_ONE_LINE.search(source_of(part)) for part in before)):
        return
    reads = files if by_file else files[1:]
    if not (any(map(text.unsafe, reads)) or text.stdin(node) is not None):
        return
    counts = ("c" in letters or "--count" in letters) or bool(
        around and around[-1].start_byte > node.start_byte and re.match(r"wc\b", source_of(around[-1]))
    )
    substitution = next((a for a in above(node) if a.type == "command_substitution"), None)
    if substitution is None:
        if not counts and is_wanted(node):
            yield Rule.SOMEWHERE
    elif (not (counts and pattern in _EVERY_LINE) and _is_used(substitution, text, counts=counts)) or (
        (whole_line or "o" in letters)
        and _LITERAL.fullmatch(pattern)
        and _is_used(substitution, text, counts=False, yes=_EQUAL)
    ):
        yield Rule.SOMEWHERE


def by_expr(node: Node, arguments: list[Node], text: AgentText) -> bool:
    """`expr "$got" : '.*42'`: the answer may go on."""
    given = [plain(a) for a in arguments]
    matches = ":" in given or given[:1] in (["match"], ["index"])
    inside = any(a.type == "command_substitution" for a in above(node))
    return (
        matches
        and not inside
        and not given[-1].endswith("$")
        and any(map(text.carries, arguments))
        and is_wanted(node)
    )


def by_selection(node: Node, name: str, arguments: list[Node], text: AgentText, *, fed: bool) -> bool:
    """`[ -n "$(jq '.[] | select(.id == 7)' out)" ]`, `awk '$1 == "ok"' out | wc -l`: programs that print what fits, as grep does, or the lines that
    two files share, as `comm -12` does."""
    given, letters = operands(arguments), options(arguments)
    program = plain(given[0]) if given else ""
    shares = _shows_shared(name, letters) or (name == "join" and not {"v", "a"} & {*letters})
    own = (
        any(text.unsafe(f) or text.carries(f) for f in given) if shares else any(map(text.unsafe, given[1:]))
    )
    if not (shares or selects(name, arguments)) or not (fed or own):
        return False
    substitution = next((a for a in above(node) if a.type == "command_substitution"), None)
    pipeline = next((a for a in above(node) if a.type == "pipeline"), None)
    last = pipeline.named_children[-1] if pipeline is not None else node
    counts = re.match(r"wc\b", source_of(last)) is not None or program.endswith("length")
    return substitution is not None and _is_used(
        substitution, text, counts=counts, yes=_AT_LEAST if counts else None
    )


def _shows_shared(name: str, letters: str) -> bool:
    """`comm -12` shows only the lines of both files."""
    return name == "comm" and {"1", "2"} <= {*letters} and "3" not in letters


def selects(name: str, arguments: list[Node]) -> bool:
    """Whether a program of jq or awk prints what fits."""
    program = plain(given[0]) if (given := operands(arguments)) else ""
    return "select(" in program if name == "jq" else name in AWKS and "==" in program and "{" not in program


def by_comm(node: Node, arguments: list[Node], text: AgentText) -> bool:
    """`comm -23 /tests/want out`: nothing shows the lines that only the agent's file has, here or in another `comm` of the script."""
    if _shows_shared("comm", options(arguments)) or not (text.hides(arguments) and text.every_comm_hides):
        return False
    substitution = next((a for a in above(node) if a.type == "command_substitution"), None)
    if substitution is None:
        return is_empty_file(node, text)
    return is_required_empty(substitution, text)


def is_empty_file(node: Node, text: AgentText) -> bool:
    """Whether the tests require that the file of a command's output is empty: `[ ! -s /tmp/missing ]`."""
    written = next((a for a in above(node) if a.type == "redirected_statement"), node)
    files = [text.text(c.named_children[-1]) for c in written.named_children if c.type == "file_redirect"]
    sized = "|".join(rf"-s\s+[\"']?{re.escape(file)}[\"']?\s" for file in files)
    return bool(sized) and any(
        is_wanted(test, holds=re.match(r"\[\[?\s+!", source) is not None)
        for test, source in text.conditions
        if re.search(sized, source) is not None
    )


def is_required_empty(substitution: Node, text: AgentText) -> bool:
    """Whether the tests require that commands print nothing, or count none."""
    counts = re.search(r"\|\s*wc\b|\bgrep -\w*c|\blength\b", source_of(substitution)) is not None
    return _is_used(
        substitution,
        text,
        counts=counts,
        yes=_COUNTED_NONE if counts else _NONE,
        no=_COUNTED if counts else _NOT_EMPTY,
    )


def is_negated(node: Node) -> bool:
    """`! a | b`, in which the parser gives the sign to the first command alone."""
    return node.type == "pipeline" and node.named_children[0].type == "negated_command"


def is_wanted(node: Node, *, holds: bool = True) -> bool:
    """Whether success depends on a condition: it leads to success, or its opposite leads to failure. Waiting loops do not count."""
    for ancestor in above(node):
        if ancestor.type == "negated_command" or (
            is_negated(ancestor) and ancestor.named_children[0] != node
        ):
            holds = not holds
        elif ancestor.type == "list":
            after = [c for c in ancestor.children if c.start_byte >= node.end_byte]
            if after:
                holds = holds == (after[0].type == "&&")
                return holds != bool(_FAILS.search(source_of(after[-1])))
        elif ancestor.type in ("if_statement", "elif_clause") and ancestor.named_children[0] == node:
            then = [c for c in ancestor.named_children[1:] if c.type not in ("elif_clause", "else_clause")]
            return holds != any(_FAILS.search(source_of(c)) for c in then)
        elif ancestor.type == "while_statement" and ancestor.named_children[0] == node:
            return False
        node = ancestor
    return holds


def _is_used(
    substitution: Node, text: AgentText, *, counts: bool, yes: str | None = None, no: str | None = None
) -> bool:
    """Whether a test requires that what grep printed is not empty, or that grep counted some lines."""
    forms = [re.escape(source_of(substitution))]
    assigned = next((a for a in above(substitution) if a.type == "variable_assignment"), None)
    if assigned is not None:
        forms.append(rf"\$?\{{?\b{re.escape(source_of(assigned.named_children[0]))}\b\}}?")
    form = f"(?:{'|'.join(forms)})"
    usual, unusual = (_COUNTED, _COUNTED_NONE) if counts else (_NOT_EMPTY, _EMPTY)
    yes, no = yes or usual, no or unusual
    for node, source in text.conditions:
        turned = re.match(r"\[\[?\s+!", source) is not None
        if re.search(yes.format(form), source) and is_wanted(node, holds=not turned):
            return True
        if re.search(no.format(form), source) and is_wanted(node, holds=turned):
            return True
    return False


def by_awk(program: Node) -> bool:
    """`/42/ {ok = 1}`: one line decides."""
    return _FLAG.search(plain(program)) is not None


def in_loop(node: Node, text: AgentText) -> Iterator[Rule]:
    """`while read line; do [ "$line" = 42 ] && ok=1; done < out`: one line of the agent's decides."""
    if node.type == "for_statement":
        names = {source_of(node.named_children[0])} & text.names
        body = node.named_children[-1]
    else:
        body = node.named_children[-1]
        read = [words(c) for n in node.named_children[:-1] for c in every(n) if c.type == "command"]
        names = {
            plain(w) for found in read if found and plain(found[0]) == "read" for w in operands(found[1:])
        }
        names &= text.names
        if len(read) > 1:
            return  # two files, line by line
    if not names:
        return
    own = names | {
        source_of(n.named_children[0])
        for n in every(body)
        if n.type == "variable_assignment" and n.named_children
    }
    own |= {
        source_of(n.named_children[0])
        for n in every(body)
        if n.type == "postfix_expression" and n.named_children
    }
    for found in every(body):
        if decides(found) and any(_by_line(a, found, names, own) for a in _up_to(found, body)):
            yield Rule.SOMEWHERE
            return


def _up_to(node: Node, end: Node) -> Iterator[Node]:
    for ancestor in above(node):
        if ancestor == end:
            return
        yield ancestor


def decides(node: Node) -> bool:
    """Whether a node by itself makes the tests succeed: `ok=1`, `exit 0`, `echo 1 > file`."""
    if node.type == "variable_assignment" and len(node.named_children) > 1:
        value = source_of(node.named_children[1])
        return _TRUE.fullmatch(value) is not None or value.startswith("$((")
    if node.type == "postfix_expression":
        return source_of(node).endswith("++")
    if node.type == "command":
        found = [plain(word) for word in words(node)]
        if found[:1] in (["echo"], ["printf"]):
            return _TRUE.fullmatch("".join(found[1:2]).removesuffix("\\n")) is not None and any(
                a.type in ("redirected_statement", "pipeline") for a in above(node)
            )
        succeeds = found[:1] in (["exit"], ["return"]) and found[1:] in ([], ["0"])
        return succeeds or found[:1] in (["break"], ["touch"]) or "reward." in source_of(node)
    return False


def _by_line(node: Node, deciding: Node, names: set[str], own: set[str]) -> bool:
    """Whether a condition around the deciding node compares the line with a fixed text."""
    if node.type == "case_item":
        pattern = source_of(node.named_children[0]) if node.named_children else "*"
        subject = node.parent.named_children[0] if node.parent is not None else node
        return pattern != "*" and bool(variables_in(subject) & names)
    if node.type == "list":
        signs = [child.type for child in node.children]
        if "&&" not in signs or node.named_children[0].end_byte > deciding.start_byte:
            return False
        conditions = [c for c in node.named_children if c.end_byte <= deciding.start_byte]
    elif node.type == "if_statement":
        conditions = node.named_children[:1]
        if any(c.type == "else_clause" and c.start_byte <= deciding.start_byte for c in node.named_children):
            return False
    else:
        return False
    return any(
        sign in _EQUALS
        and bool(variables_in(e) & names)
        and not (variables_in(e) - names) & own
        and "[" not in source_of(e).strip("[")
        for condition in conditions
        for e in every(condition)
        for sign in _signs(e)
    )


def _signs(node: Node) -> list[str]:
    """The operator of a comparison in `[ … ]`, `[[ … ]]` or `test …`."""
    if node.type == "binary_expression" and len(node.children) >= 3:
        return [source_of(node.children[1])]
    found = [source_of(child) for child in node.children] if node.type == "command" else []
    return found[2:3] if len(found) == 4 and found[0] == "test" else []
