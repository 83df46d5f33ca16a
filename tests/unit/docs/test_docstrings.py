"""The examples in docstrings give the results that they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("orchestrator", "trainer", "sandboxes", "agents", "ops/lab")


def with_examples() -> list[str]:
    """The names of modules with doctest examples."""
    files = [file for part in PARTS for file in sorted((ROOT / part).rglob("*.py"))]
    found = [file.relative_to(ROOT) for file in files if ">>> " in file.read_text(encoding="utf-8")]
    return [
        ".".join(file.with_suffix("").parts).removeprefix("agents.").removesuffix(".__init__")
        for file in found
    ]


@pytest.mark.parametrize("module", with_examples())
def test_examples_give_what_they_show(module: str) -> None:
    found = doctest.testmod(import_module(module))
    assert found.failed == 0 and found.attempted > 0


def test_there_are_examples() -> None:
    assert len(with_examples()) > 60
