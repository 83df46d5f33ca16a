"""The maps of the code name files and modules that exist."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGES = [
    path
    for folder in ("orchestrator", "sandboxes", "trainer", "agents/scaffolds", "ops/lab")
    for path in sorted((REPOSITORY / folder).rglob("__init__.py"))
]

MODULE = r"[a-z_]+(?:\.py|/)?"


def listed(source: str) -> list[str]:
    """The modules that a package's docstring lists: in each line their names, two spaces or more, and what they do."""
    doc = ast.get_docstring(ast.parse(source)) or ""
    names = rf"({MODULE}(?:(?: · | → |, ){MODULE})*)"
    rows = re.findall(rf"^{names}\s{{2,}}\S", doc, re.MULTILINE)
    return [re.sub(r"(\.py|/)$", "", name) for row in rows for name in re.split(" · | → |, ", row)]


def test_the_modules_of_a_line_are_read_one_by_one() -> None:
    source = "'One room.\\n\\none.py · two → three/, four   the same\\nfive.py is prose\\n'"
    assert listed(source) == ["one", "two", "three", "four"]


def test_a_package_lists_modules_that_it_has() -> None:
    absent = [
        f"{path.parent.relative_to(REPOSITORY)}: {name}"
        for path in PACKAGES
        for name in listed(path.read_text(encoding="utf-8"))
        if not (path.parent / name).is_dir() and not path.with_name(f"{name}.py").is_file()
    ]
    assert absent == []


@pytest.mark.parametrize(
    "package",
    [
        *("orchestrator/rewards", "orchestrator/scheduling", "orchestrator/pool", "orchestrator/tasks"),
        "sandboxes",
    ],
)
def test_a_package_lists_all_its_modules_once(package: str) -> None:
    folder = REPOSITORY / package
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")}
    assert sorted(listed((folder / "__init__.py").read_text(encoding="utf-8"))) == sorted(modules)


def test_the_map_of_processes_has_a_line_for_each_role() -> None:
    tree = ast.parse((REPOSITORY / "orchestrator/app.py").read_text(encoding="utf-8"))
    roles = next(
        node.value.keys
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign)
        and ast.unparse(node.target) == "roles"
        and isinstance(node.value, ast.Dict)
    )
    names = {key.value for key in roles if isinstance(key, ast.Constant)}
    lines = re.findall(r"^    ([a-z_]+) {2,}\S.*→", ast.get_docstring(tree) or "", re.MULTILINE)
    assert len(names) == len(roles) and names <= set(lines)


def test_the_paths_through_the_code_name_files_and_their_functions() -> None:
    text = (REPOSITORY / "AGENTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:a|an) .*\|$", text.partition("## Map")[2], re.MULTILINE)
    assert len(rows) == 4
    for path, function in re.findall(r"`([\w/]+\.py)`(?: \(`([\w.]+)`)?", "\n".join(rows)):
        source = (REPOSITORY / path).read_text(encoding="utf-8")
        assert not function or f"def {function.rpartition('.')[2]}(" in source, (path, function)
