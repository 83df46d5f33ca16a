"""Tests wait for conditions (tests/waiting.py), and time passes at once where a clock is tested (tests/virtual_time.py). Ruff's TID251 bans sleeps in
tests (tests/ruff.toml); the exceptions are listed here by name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
EXEMPTION = re.compile(r"# noqa: [A-Z0-9, ]*TID251")
SILENT = "work that keeps a transaction silent: that time is the subject"
SLEEPERS = {
    "waiting.py: eventually": "between two reads of a value; every other wait of an event loop is made of it",
    "waiting.py: eventually_blocking": "the same without an event loop",
    "virtual_time.py: passes": "virtual time: it takes none",
    "integration/roles/test_slow_rewards.py: __call__": SILENT,
    "integration/roles/test_slow_rewards.py: take": SILENT,
    "integration/trainer/test_failing_batches.py: slow": SILENT,
    "integration/trainer/reborn_trainer.py: main": "a process is killed at a random moment between two lines of its log",
}
"""`FILE: FUNCTION` → why it sleeps, once each."""


def function_at(tree: ast.AST, line: int) -> str:
    """The innermost function around a line."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno).name if around else "module"


def exempt(text: str) -> Iterator[str]:
    """The function of each line that is exempt from the ban."""
    for number, line in enumerate(text.splitlines(), start=1):
        if EXEMPTION.search(line):
            yield function_at(ast.parse(text), number)


def disguised(text: str) -> Iterator[int]:
    """Lines of scopes that end after a time, and in which nothing happens until then: a sleep by other words."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.With) or len(node.body) != 1:
            continue
        ends = any("move_on_after(" in ast.unparse(item.context_expr) for item in node.items)
        if ends and re.fullmatch(
            r"await (anyio\.sleep_forever\(\)|(anyio|asyncio)\.Event\(\)\.wait\(\))",
            ast.unparse(node.body[0]),
        ):
            yield node.lineno


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        yield str(path.relative_to(TESTS)), path.read_text(encoding="utf-8")


def test_only_the_functions_of_the_list_sleep_and_each_of_them_does() -> None:
    found = [f"{path}: {name}" for path, text in sources() for name in exempt(text)]
    assert sorted(found) == sorted(SLEEPERS), "wait for a condition (tests.waiting), or take it off the list"


def test_no_test_sleeps_by_other_words() -> None:
    found = [f"{path}:{line}" for path, text in sources() for line in disguised(text)]
    assert found == [], "wait for a condition (tests.waiting)"


@pytest.mark.parametrize("mark", ["TID251", "BLE001, TID251"])
def test_an_exemption_is_found_by_its_innermost_function(mark: str) -> None:
    text = (
        f"async def a():\n    async def b():\n        await anyio.sleep(1)  # noqa: {mark}\n    await b()\n"
    )
    assert list(exempt(text)) == ["b"]


@pytest.mark.parametrize(
    ("body", "found"),
    [("await anyio.sleep_forever()", [1]), ("await anyio.Event().wait()", [1]), ("await done.wait()", [])],
)
def test_a_scope_that_only_lets_a_time_pass_is_found(body: str, found: list[int]) -> None:
    assert list(disguised(f"with anyio.move_on_after(1):\n    {body}\n")) == found
