"""Programs of awk that fail only at a wrong line: a file without lines has none."""

import re
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.transforms import programs_of
from orchestrator.tasks.traps.tree import plain

_END: Final = re.compile(r"\bEND\s*\{(.*)", re.DOTALL)
_EXIT: Final = r"\bexit\s*(?:\(\s*)?"
_CLOSED: Final = r"\s*(?:\)\s*)?"
_ENDS: Final = r"(?:;\s*)?\}"
_FAILS: Final = re.compile(rf"{_EXIT}(?:1|!)")
_FLAG: Final = re.compile(rf"{_EXIT}(\w+){_CLOSED}(?:(?:>|!=)\s*0\s*|\?\s*1\s*:\s*0\s*)?{_ENDS}")
_AT_MOST: Final = re.compile(rf"{_EXIT}NR\s*>\s*\d+{_CLOSED}{_ENDS}")
_BEGIN: Final = re.compile(r"\bBEGIN\s*\{")


def fails_by_line(name: str, arguments: list[Node]) -> bool:
    """`awk '$2 < 0 { exit 1 }' out`, `awk '$2 < 0 { bad = 1 } END { exit bad }' out`: nothing requires a line."""
    return any(_fails(plain(program)) for program in programs_of(name, arguments))


def _fails(program: str) -> bool:
    end = _END.search(program)
    if end is None:
        return _FAILS.search(program) is not None and "BEGIN" not in program
    if _AT_MOST.search(end[0]):
        return True
    flag = _FLAG.search(end[0])
    if flag is None or re.search(r"\b(?:FNR|NR|length)\b", end[1]):
        return False
    before = program[: end.start()]
    blocks = (block.partition("}")[0] for block in _BEGIN.split(before)[1:])
    begins = any(re.search(rf"\b{flag[1]}\s*=\s*[1-9]", block) for block in blocks)
    changes = re.search(rf"\b{flag[1]}\s*(?:=(?!=)|\+[+=])|\+\+{flag[1]}\b", before)
    again = re.search(rf"\b{flag[1]}\s*(?:=(?!=)|\+[+=])", end[1])
    return not begins and changes is not None and again is None
