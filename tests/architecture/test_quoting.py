"""Error sentences quote foreign text by one helper, which shortens it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSIDE = ("scaffold_check/", "scripted/", "audit/", "deploy/embedded/", "runtime/failpoints.py")
"""Parts whose sentences quote our own words."""


def unbounded(file: Path) -> Iterator[str]:
    """The lines of `raise` statements that show a value whole, as `{value!r}`."""
    for statement in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Raise):
            for node in ast.walk(statement):
                if isinstance(node, ast.FormattedValue) and node.conversion == ord("r"):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}"


def test_errors_quote_what_others_wrote_by_the_helper_that_shortens_it() -> None:
    files = [
        file
        for file in sorted((ROOT / "orchestrator").rglob("*.py"))
        if not file.relative_to(ROOT / "orchestrator").as_posix().startswith(INSIDE)
    ]
    assert len(files) > 200
    assert [found for file in files for found in unbounded(file)] == []
