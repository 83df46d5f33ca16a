"""A closed set is compared by its members: a bare literal of one is a word that no tool checks."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("orchestrator", "sandboxes", "agents/scaffolds", "trainer", "ops/lab")
SHARED = "orchestrator/contracts/"
"""Where the closed sets lie that several rooms compare."""
APART = ("sandboxes/", "agents/")
"""Folders that do not import the orchestrator, so they know only each other's enums."""
COMMON = {
    "accepted", "agent", "closed", "constant", "context", "ended", "eval", "failed", "file", "function", "m", "message", "none", "ok", "open",
    "public", "root", "run", "sample", "sandbox", "step", "timeout", "token", "trained",
}  # fmt: skip
"""Members of shared sets that other vocabularies also use (wires, tasks, kernels, subjects of the bus). Only their declared types tell them apart."""
Sources = list[tuple[str, ast.Module]]
Enums = Mapping[str, Set[str]]


def parsed() -> Sources:
    return [
        (path.relative_to(REPOSITORY).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for folder in PRODUCT
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
    ]


def enums(sources: Sources, below: str = "") -> Enums:
    """The strings of each StrEnum that is defined below a folder, by its name."""
    return {
        node.name: {
            each.value.value
            for each in node.body
            if isinstance(each, ast.Assign)
            and isinstance(each.value, ast.Constant)
            and isinstance(each.value.value, str)
        }
        for path, tree in sources
        if path.startswith(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2] == "StrEnum" for base in node.bases)
    }


def members_of(annotation: ast.expr | None, known: Enums) -> set[str]:
    """The strings of the enums in an annotation; none if it also admits a `str`."""
    names = {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)} if annotation else set()
    return set() if "str" in names else {text for name in names & known.keys() for text in known[name]}


def fields(sources: Sources, known: Enums) -> Enums:
    """The strings of enums that a field of a name may hold, by that name. A name that is a text in another class is left out."""
    found: dict[str, set[str]] = defaultdict(set)
    texts = set()
    open_types = {"str", "Literal", *literals(sources)}
    for _, tree in sources:
        for node in ast.walk(tree):
            for each in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    found[each.target.id] |= members_of(each.annotation, known)
                    if open_types & {p.id for p in ast.walk(each.annotation) if isinstance(p, ast.Name)}:
                        texts.add(each.target.id)
    return {name: strings for name, strings in found.items() if name not in texts}


def literals(sources: Sources) -> set[str]:
    """The names of module-level `Name = Literal[…]`, whose comparisons mypy checks."""
    return {
        node.targets[0].id
        for _, tree in sources
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and ast.unparse(node.value).startswith("Literal[")
    }


def comparisons(tree: ast.AST) -> Iterator[tuple[ast.expr, str, int]]:
    """(compared, literal, line) of each `x == "literal"`, `x in ("literal", …)` and `case "literal"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            for case in node.cases:
                for part in ast.walk(case.pattern):
                    if isinstance(part, ast.MatchValue) and isinstance(part.value, ast.Constant):
                        yield node.subject, str(part.value.value), part.lineno
        if not isinstance(node, ast.Compare):
            continue
        for left, how, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            pairs = [(left, right), (right, left)]
            if isinstance(how, ast.In | ast.NotIn):
                pairs = [(left, each) for each in getattr(right, "elts", ())]
            for compared, literal in pairs:
                if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                    yield compared, literal.value, node.lineno


def bare(sources: Sources) -> list[str]:
    """Comparisons of a field or parameter of an enum's type with one of its literals, and of anything with an unmistakable shared one."""
    apart = [(path, tree) for path, tree in sources if path.startswith(APART)]
    inside = [(path, tree) for path, tree in sources if not path.startswith(APART)]
    distinct = {text for strings in enums(inside, SHARED).values() for text in strings} - COMMON
    return [*_bare(apart, apart, set()), *_bare(inside, sources, distinct)]


def _bare(checked: Sources, sources: Sources, distinct: Set[str]) -> list[str]:
    known = enums(sources)
    by_field = fields(sources, known)
    wrong: dict[str, None] = {}
    for path, tree in checked:
        for compared, literal, line in comparisons(tree):
            typed = isinstance(compared, ast.Attribute) and literal in by_field.get(compared.attr, ())
            if typed or literal in distinct:
                wrong[f"{path}:{line}: {ast.unparse(compared)}, {literal!r}"] = None
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                given = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
                types = {each.arg: members_of(each.annotation, known) for each in given}
                for compared, literal, line in comparisons(function):
                    if isinstance(compared, ast.Name) and literal in types.get(compared.id, ()):
                        wrong[f"{path}:{line}: {compared.id}, {literal!r}"] = None
    return list(wrong)


def test_a_member_of_a_closed_set_is_not_compared_as_a_bare_literal() -> None:
    assert bare(parsed()) == [], (
        "compare with the member of the enum; a word of another vocabulary goes into COMMON"
    )


def test_every_common_word_is_still_a_member_of_a_shared_set() -> None:
    sources = parsed()
    assert {text for strings in enums(sources, SHARED).values() for text in strings} >= COMMON


SET = 'class Colour(StrEnum):\n    RED = "red"\n    NONE = "none"\nclass C:\n    colour: Colour\n    name: str\n'


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ('each.colour == "none"', True),
        ('each.colour in ("none", other)', True),
        ('each.name == "none"', False),
        ('"red" != anything', True),
        ('match each.colour:\n    case "none" | "blue":\n        pass', True),
        ('def f(how: Colour | None): return how == "none"', True),
        ('def f(how: str): return how == "none"', False),
        ('path == ("red", "blue")', False),
        ("each.colour == Colour.RED", False),
    ],
)
def test_the_rule_finds(source: str, wrong: bool) -> None:
    assert bool(bare([(SHARED + "x.py", ast.parse(SET + source))])) is wrong
