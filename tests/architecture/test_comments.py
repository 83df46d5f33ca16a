"""A long comment lies above its line: behind it, ruff-format breaks the line at a bracket that nothing needs."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("orchestrator", "sandboxes", "agents", "trainer")
BROKEN = re.compile(
    r"^[^\n#]*[(\[{]\n"  # a line ends with a bracket
    r"(?: *(?!#)[^\n#]*[^\n#,]  # [^\n]*\n *[)\]}][^\n]*"  # the only line within has a comment and no comma
    r"| *(?!#)[^\n#]*[^\n#,]\n *[)\]}][^\n#]*  # (?!fmt:|noqa|type:)[^\n]*)$",  # or the closing line has one
    re.MULTILINE,
)


def broken(source: str) -> list[int]:
    """The numbers of the lines that a comment breaks."""
    return [source.count("\n", 0, found.start()) + 1 for found in BROKEN.finditer(source)]


def test_no_comment_breaks_a_line_of_the_product() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for folder in PRODUCT
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for line in broken(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "write the comment as a sentence above the line"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("A = (\n    1  # one\n)\n", [1]),
        ("x\nif (\n    a is None\n):  # none\n    pass\n", [2]),
        ("A = Annotated[\n    int, 1\n]  # one\n", [1]),
        ("# One.\nA = 1\n", []),
        ("A = [\n    1,  # one\n]\n", []),
        ("A = (\n    1, 2, 3,\n)  # fmt: skip\n", []),
        ("f(\n    a\n    + b  # both\n)\n", []),
    ],
)
def test_the_rule_finds(source: str, lines: list[int]) -> None:
    assert broken(source) == lines
