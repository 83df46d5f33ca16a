"""Programs of `jq -e` that a wrong answer passes: the last value of several decides, and null is less than every number."""

import re
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.somewhere import is_wanted
from orchestrator.tasks.traps.transforms import programs_of
from orchestrator.tasks.traps.tree import above, options, plain, source_of

_TEXTS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_INNER: Final = re.compile(r"\([^()]*\)|\[[^\[\]]+\]|\{[^{}]*\}")
_COMPARES: Final = re.compile(r"[=!<>]=|[<>]")
_GATHERS: Final = re.compile(r"\b(?:reduce|foreach|select|empty|error|input|inputs|def|if|first|limit|as)\b")
"""Words of programs whose last value may hold for all, or that end early."""
_EACH: Final = "@@"
_PATH: Final = r"\.(?:[\w.?]|\[\d+\])*"
_NULL_PASSES: Final = re.compile(
    rf"\s*(?:{_PATH}|\(?\s*{_PATH}\s*\|\s*length\s*\)?)\s*(?:<=?\s*[\d.]+|!=\s*(?!null\b)[\w.\"-]+)\s*"
)
_WRITES: Final = re.compile(r"\s*(?:1|&)?>(?!&|\s*/dev/null)")


def last_value_decides(node: Node, name: str, arguments: list[Node]) -> bool:
    """`jq -e '.[] | . == 42' out`: the status is that of the last value."""
    if not _is_status(name, arguments) or not is_wanted(node) or _is_read(node):
        return False
    return any(map(_ends_in_stream, map(plain, programs_of(name, arguments))))


def holds_for_null(name: str, arguments: list[Node]) -> bool:
    """`jq -e '.total <= 5' out`: true for `{}`, too."""
    return _is_status(name, arguments) and any(
        all(map(_NULL_PASSES.fullmatch, re.split(r"\band\b", plain(program))))
        for program in programs_of(name, arguments)
    )


def _is_status(name: str, arguments: list[Node]) -> bool:
    return name == "jq" and ("e" in options(arguments) or "--exit-status" in map(plain, arguments))


def _ends_in_stream(program: str) -> bool:
    """Whether a program gives a comparison for each entry: `.[] | . == 42`, not `[.[] | . == 42] | all`."""
    program, before = _TEXTS.sub("x", program).replace("[]", _EACH), ""
    while before != program:
        before, program = program, _INNER.sub("x", program)
    after = program.rpartition(_EACH)[2]
    return _EACH in program and _COMPARES.search(after) is not None and _GATHERS.search(program) is None


def _is_read(node: Node) -> bool:
    """Whether something reads the output, which shows every value."""
    for around in above(node):
        if around.type in ("command_substitution", "process_substitution"):
            return True
        if around.type == "pipeline" and around.named_children[-1] != node:
            return True
        if around.type == "redirected_statement" and any(
            _WRITES.match(source_of(c)) for c in around.named_children if c.type == "file_redirect"
        ):
            return True
    return False
