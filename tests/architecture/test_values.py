"""Values are named: a class of four or more fields takes them by keyword alone, `__init__` takes three by position at most, and rows become
values by the names of their columns. Closed sets are enums."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("orchestrator", "sandboxes", "agents/scaffolds", "trainer")
FEWEST = 4  # fields of a class that may not be filled by position; columns of a row that may not be copied one by one
ROWS = {"row", "head"}  # the usual names of a row

CLOSED = {
    "state", "status", "purpose", "kind", "finish", "parse", "failure_class", "replay", "silent", "t_base_origin"
}  # fmt: skip
"""Names of fields that hold a member of a closed set."""
OPEN = {
    "orchestrator/api/filters.py: TrajectoryFilters.purpose": "what a person writes: the query checks it",
    "orchestrator/api/filters.py: TrajectoryFilters.state": "what a person writes: the query checks it",
    "orchestrator/deploy/cluster/topology.py: BareHosts.state": "a directory",
    "orchestrator/queries/attempt_filters.py: AttemptFilters.purpose": "what a person writes: the class checks it",
    "orchestrator/queries/attempt_filters.py: AttemptFilters.state": "of a group or a rollout",
    "orchestrator/queries/filters.py: GroupFilters.purpose": "what a person writes: the class checks it",
    "orchestrator/queries/filters.py: GroupFilters.state": "what a person writes: the class checks it",
    "orchestrator/queries/filters.py: RolloutFilters.failure_class": "what a person writes: the class checks it",
    "orchestrator/queries/filters.py: RolloutFilters.purpose": "what a person writes: the class checks it",
    "orchestrator/queries/filters.py: RolloutFilters.state": "what a person writes: the class checks it",
    "orchestrator/queries/system.py: OutboxLine.kind": "the beginning of a subject",
    "sandboxes/procfs.py: Stat.state": "the kernel's letter",
    "agents/scaffolds/base.py: Hints.finish": "a command",
}
"""Fields with such a name that are texts, and why."""


def parsed(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders or PRODUCT:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield path.relative_to(REPOSITORY).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def positional(sources: Iterator[tuple[str, ast.Module]]) -> list[str]:
    """Dataclasses and structs with FEWEST fields or more, inherited ones counted, that are not keyword-only."""
    found = [
        (path, node) for path, tree in sources for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    known = {node.name: node for _, node in found}

    def line(node: ast.ClassDef) -> list[ast.ClassDef]:
        """The class and its base classes, as far as they are in the product."""
        names = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != node.name]
        return [node, *(each for name in names if name in known for each in line(known[name]))]

    wrong = []
    for path, node in found:
        structs = [ast.unparse(base) for each in line(node) for base in each.bases]
        options = node.keywords if "msgspec.Struct" in structs else dataclass_options(node)
        fields = {name for each in line(node) for name in fields_of(each)}
        if options is not None and len(fields) >= FEWEST and fields_of(node) and not says(options, "kw_only"):
            wrong.append(f"{path}:{node.lineno}: {node.name}")
    return wrong


def dataclass_options(node: ast.ClassDef) -> list[ast.keyword] | None:
    """The arguments of the class's `@dataclass`; None: it has none."""
    for each in node.decorator_list:
        if ast.unparse(each).partition("(")[0] in ("dataclass", "dataclasses.dataclass"):
            return each.keywords if isinstance(each, ast.Call) else []
    return None


def says(options: list[ast.keyword], name: str) -> bool:
    return any(each.arg == name and ast.unparse(each.value) == "True" for each in options)


def fields_of(node: ast.ClassDef) -> list[str]:
    """The names of the fields that `__init__` takes."""
    return [
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and "ClassVar" not in ast.unparse(each.annotation)
        and not (each.value and "init=False" in ast.unparse(each.value))
    ]


def by_position(sources: Iterator[tuple[str, ast.Module]]) -> list[str]:
    """Classes whose own `__init__` takes FEWEST or more values by position."""
    return [
        f"{path}: {node.name}"
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        if len(each.args.posonlyargs + each.args.args) > FEWEST  # `self` is one of them
    ]


def unpacked_rows(sources: Iterator[tuple[str, ast.Module]]) -> list[str]:
    """Calls of a class that spread a row over its fields by position, such as `Line(*row)` and `Line(*tuple(row))`."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].lstrip("_")[:1].isupper()
        for argument in node.args
        if isinstance(argument, ast.Starred)
        and any(isinstance(part, ast.Name) and part.id == "row" for part in ast.walk(argument))
    ]


def row_names(function: ast.AST) -> set[str]:
    """The names that hold a row in a function: the usual ones, and those bound to one row, the next row or each row of an executed
    statement."""
    results = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ".execute(" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    iterated = {
        node.target.id
        for node in ast.walk(function)
        if isinstance(node, ast.For | ast.comprehension)
        and isinstance(node.target, ast.Name)
        and (
            ".execute(" in ast.unparse(node.iter)
            or any(isinstance(part, ast.Name) and part.id in results for part in ast.walk(node.iter))
        )
    }
    chosen = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("next(")
        for target in node.targets
        if isinstance(target, ast.Name)
        and any(isinstance(part, ast.Name) and part.id in results for part in ast.walk(node.value))
    }
    return ROWS | results | iterated | chosen


def copied_rows(sources: Iterator[tuple[str, ast.Module]]) -> list[str]:
    """Calls with FEWEST or more arguments of the form `name=row.name` or `name=Enum(row.name)`."""
    wrong: dict[str, None] = {}
    for path, tree in sources:
        for scope in ast.walk(tree):
            if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            calls = [(node, copied(node)) for node in ast.walk(scope) if isinstance(node, ast.Call)]
            calls = [(node, names) for node, names in calls if names]
            rows = row_names(scope) if calls and not isinstance(scope, ast.Module) else ROWS
            for node, names in calls:
                if names & rows:
                    wrong[f"{path}:{node.lineno}: {ast.unparse(node.func)}"] = None
    return list(wrong)


def copied(call: ast.Call) -> set[str]:
    """The variables from which the call copies FEWEST or more arguments `name=variable.name`, those that become enums included."""
    values = ((each.arg, inside(each.value)) for each in call.keywords)
    counts = Counter(
        value.value.id
        for name, value in values
        if isinstance(value, ast.Attribute) and value.attr == name and isinstance(value.value, ast.Name)
    )
    return {name for name, count in counts.items() if count >= FEWEST}


def inside(value: ast.expr) -> ast.expr:
    """The column of a conversion that `from_row` makes: to the member of an enum; else the value itself."""
    if isinstance(value, ast.Call) and len(value.args) == 1 and ast.unparse(value.func)[:1].isupper():
        return value.args[0]
    return value


def texts(sources: Iterator[tuple[str, ast.Module]]) -> list[str]:
    """Fields of classes whose name is one of CLOSED and whose type includes `str`."""
    return [
        f"{path}: {node.name}.{each.target.id}"
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and each.target.id in CLOSED
        and any(isinstance(part, ast.Name) and part.id == "str" for part in ast.walk(each.annotation))
    ]


def test_a_class_of_four_fields_or_more_takes_them_by_keyword_alone() -> None:
    assert positional(parsed()) == []


def test_a_class_takes_three_values_by_position_at_most() -> None:
    assert by_position(parsed(*PRODUCT, "ops/lab")) == [], "write `*` before the others"


def changing(sources: Iterator[tuple[str, ast.Module]]) -> list[str]:
    """Dataclasses that are not frozen."""
    return [
        f"{path}: {node.name}"
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if (options := dataclass_options(node)) is not None and not says(options, "frozen")
    ]


def test_requests_and_completions_of_the_gateway_do_not_change() -> None:
    """A prepared completion is shared by a call, its retries and its record."""
    assert changing(parsed("orchestrator/gateway/completions", "orchestrator/gateway/messages")) == []
    assert changing(iter([("x.py", ast.parse("@dataclass(slots=True)\nclass C: pass"))])) == ["x.py: C"]


def test_a_row_becomes_a_value_by_the_names_of_its_columns() -> None:
    assert unpacked_rows(parsed()) == [], "write from_row(C, row) of orchestrator.pool.rows"


def test_a_row_is_not_copied_column_by_column() -> None:
    assert copied_rows(parsed()) == [], "write from_row or from_wide_row of orchestrator.pool.rows"


def test_a_field_with_the_name_of_a_closed_set_is_an_enum() -> None:
    assert sorted(texts(parsed())) == sorted(OPEN), (
        "write an enum (orchestrator.contracts.states, .marks, or the room that owns it), or say in OPEN why it is a text"
    )


THREE = "    a: int\n    b: int\n    c: int\n"


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        (f"@dataclass\nclass C:\n{THREE}", False),
        (f"@dataclass\nclass C:\n{THREE}    d: int\n", True),
        (f"@dataclass(frozen=True)\nclass C:\n{THREE}    d: int\n", True),
        (f"@dataclass(kw_only=True)\nclass C:\n{THREE}    d: int\n", False),
        (f"@dataclass\nclass C:\n{THREE}    d: ClassVar[int] = 1\n    e: int = field(init=False)\n", False),
        (f"@dataclass\nclass B:\n{THREE}@dataclass\nclass C(B):\n    d: int\n", True),
        (f"class C(msgspec.Struct):\n{THREE}    d: int\n", True),
        (f"class C(msgspec.Struct, kw_only=True):\n{THREE}    d: int\n", False),
        (f"class C:\n{THREE}    d: int\n", False),
    ],
)
def test_the_first_rule_finds(source: str, wrong: bool) -> None:
    assert bool(positional(iter([("x.py", ast.parse(source))]))) is wrong


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("Line(*row)", True),
        ("look.Line(*tuple(row))", True),
        ("Line(*row[:-1])", True),
        ("from_row(Line, row)", False),
    ],
)
def test_the_second_rule_finds(source: str, wrong: bool) -> None:
    assert bool(unpacked_rows(iter([("x.py", ast.parse(source))]))) is wrong


COPIED = "C(a=r.a, b=r.b, c=r.c, d=r.d)"


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        (COPIED.replace("r.", "row."), True),
        (COPIED.replace("r.", "row.").replace("d=row.d", "d=row.e"), False),
        (COPIED.replace("r.", "head.").replace("C(", "C(e=int(head.e), "), True),
        (COPIED.replace("r.", "row.").replace("d=row.d", "d=State(row.d)"), True),
        (COPIED.replace("r.", "row.").replace("d=row.d", "d=int(row.d)"), False),
        (f"def f(r: C) -> C:\n    return {COPIED}\n", False),
        (
            f"def f():\n    rows = connection.execute(q)\n    r = next((r for r in rows if r.a), None)\n    return {COPIED}\n",
            True,
        ),
        (f"def f():\n    return [{COPIED} for r in connection.execute(q)]\n", True),
        (f"def f():\n    rows = connection.execute(q)\n    return [{COPIED} for r in rows]\n", True),
        (f"def f():\n    r = connection.execute(q).one()\n    return {COPIED}\n", True),
        ("from_row(C, row, d=row.d or 0)", False),
    ],
)
def test_the_third_rule_finds(source: str, wrong: bool) -> None:
    assert bool(copied_rows(iter([("x.py", ast.parse(source))]))) is wrong


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("state: str", True),
        ("state: str | None = None", True),
        ("kinds: str", False),
        ("state: RunState", False),
        ("state: RunState | None = None", False),
        ('finish: Literal["stop"]', False),
    ],
)
def test_the_fourth_rule_finds(field: str, wrong: bool) -> None:
    assert bool(texts(iter([("x.py", ast.parse(f"class C:\n    {field}\n"))]))) is wrong


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [("a, b, c", False), ("a, b, c, d", True), ("a, /, b, c, d=None", True), ("a, b, c, *, d", False)],
)
def test_the_fifth_rule_finds(arguments: str, wrong: bool) -> None:
    source = f"class C:\n    def __init__(self, {arguments}): pass\n"
    assert bool(by_position(iter([("x.py", ast.parse(source))]))) is wrong


def bare_numbers(sources: Iterator[tuple[str, ast.Module]]) -> list[str]:
    """Arguments of argparse that Python's own readers of numbers take: they accept `1_0`, `+5` and `nan`."""
    return [
        f"{path}:{node.lineno}"
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
        for keyword in node.keywords
        if keyword.arg == "type" and ast.unparse(keyword.value) in ("int", "float")
    ]


def test_a_number_of_a_command_line_is_read_by_the_one_parser_with_bounds() -> None:
    assert bare_numbers(iter([("x.py", ast.parse("p.add_argument('--n', type=float)"))])) == ["x.py:1"]
    assert not bare_numbers(parsed(*PRODUCT, "ops"))
