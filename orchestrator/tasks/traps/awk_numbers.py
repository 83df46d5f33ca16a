"""Programs of awk that fail only if a number of the agent's is too small or too large: NaN is neither. And those that look
for the agent's text, as a pattern or as a part."""

import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.somewhere import AWKS, is_wanted
from orchestrator.tasks.traps.transforms import data_files, programs_of
from orchestrator.tasks.traps.tree import plain

_FAILS: Final = (
    r"\bexit(?![^;}}\n]{{0,400}}\?)[^!?;{{}}<>\n]{{0,400}}{0}\s*(?:\)\s*)?[<>]",
    r"\bif\s*\([^!;{{}}<>\n]{{0,400}}{0}\s*(?:\)\s*)?[<>][^;{{}}\n]{{0,400}}\)\s*(?:\{{\s*)?exit\s*(?:\(\s*)?1",
    r"\bexit(?=[^;}}\n]{{0,400}}[!?])[^;{{}}\n]{{0,400}}?{0}\s*(?:\)\s*)?[<>]=",
)
"""`exit (d > 0.1 || …)`, `if (d > 0.1) exit 1`, `exit !(d <= 0.1)`: for mawk, NaN is equal to every number."""
_PATTERN: Final = r"(?:~\s*|\bmatch\s*\([^,()]{{0,200}},\s*)(?:\"[^\"]{{0,100}}\"\s*)?\b{0}"
_PART: Final = r"\bindex\s*\([^,()]{{0,200}},\s*\b{0}"
_KNOWS: Final = re.compile(r"~|nan|isnum", re.IGNORECASE)


def passes_nan(node: Node, name: str, arguments: list[Node], text: AgentText, *, fed: bool) -> bool:
    """`awk -v g="$got" 'BEGIN { d = g - 42; exit (d > 0.1 || d < -0.1) }' && ok=1`. What awk does not calculate with, it may compare as text."""
    if name not in AWKS or not is_wanted(node):
        return False
    given = [rf"\b{variable}\b" for variable in _own_variables(arguments, text)]
    if fed or any(map(text.unsafe, data_files(name, arguments))):
        given.append(r"\$\w+")
    return bool(given) and any(_fails_by_order(plain(one), given) for one in programs_of(name, arguments))


def looks_for_answer(node: Node, name: str, arguments: list[Node], text: AgentText) -> Iterator[Rule]:
    """`awk -v g="$got" '$0 ~ g { ok = 1 }' /tests/want`, and `index($0, g)`, which a part of what is expected fulfils."""
    if name not in AWKS or not (given := _own_variables(arguments, text)):
        return
    own = rf"(?:{'|'.join(given)})\b"
    for program in map(plain, programs_of(name, arguments)):
        if re.search(_PATTERN.format(own), program):
            yield Rule.PATTERN
        known = re.search(rf"\blength\s*\(\s*{own}|\b{own}\s*!=\s*\"\"", program)
        if not known and re.search(_PART.format(own), program) and is_wanted(node):
            yield Rule.EMPTY


def _own_variables(arguments: list[Node], text: AgentText) -> list[str]:
    """The variables that get the agent's text: `-v g="$got"`."""
    return [
        variable
        for argument in arguments
        if (variable := plain(argument).partition("=")[0]).isidentifier() and text.carries(argument)
    ]


def _fails_by_order(program: str, given: list[str]) -> bool:
    if _KNOWS.search(program):
        return False
    own = rf"(?:{'|'.join(given)})"
    calculated = rf"{own}\s*[-+*/]\s*[\w.$]+"
    names = {m[1] for m in re.finditer(rf"\b(\w+)\s*[-+*/]=[^;}}\n]{{0,400}}?{own}", program)}
    before = -1
    while before != len(names):
        before = len(names)
        known = "|".join([calculated, *(rf"\b{name}\b" for name in names)])
        names |= {
            m[1] for m in re.finditer(rf"\b(\w+)\s*[-+*/]?=(?!=)[^;}}\n]{{0,400}}?(?:{known})", program)
        }
    number = "|".join([calculated, *(rf"\b{name}\b" for name in names)])
    return any(re.search(form.format(f"(?:{number})"), program) for form in _FAILS)
