"""The guide for contributors names files and names of code that there are, section by section."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from ops.tiers import read as read_tiers
from tests.guides import PAGES, REPOSITORY

PAGE: Final = PAGES["ops/guides/contributing.md"]
SECTIONS: Final = dict(re.findall(r"^## (.+)\n([\s\S]*?)(?=^## |\Z)", PAGE, re.M))
ENDINGS: Final = (".py", ".md", ".js", ".toml", "/")
NAME: Final = re.compile(r"_?[A-Za-z]+(?:_[A-Za-z]+)*")
ROOMS: Final = ("orchestrator", "trainer", "agents", "sandboxes", "migrations", "tests", "ops")
ELSEWHERE: Final = {"tests/test.sh", "process.json", "tsc"}
"""The contents of a task, and a program that `ops/web/check` runs."""


@cache
def files() -> dict[str, Path]:
    """All files that a recipe may name, by their paths."""
    found = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*") if path.is_file()]
    found += REPOSITORY.glob("*.*")
    return {
        path.relative_to(REPOSITORY).as_posix(): path for path in found if "__pycache__" not in path.parts
    }


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def named(span: str) -> list[str]:
    """The files that a span names by their path or its end: of a directory those in it."""
    if not span.endswith(ENDINGS):
        return [path for path in files() if path.startswith(f"{span}/")] if "/" in span else []
    return [
        path
        for path in files()
        if f"/{path}".endswith(f"/{span}") or (span[-1] == "/" and f"/{span}" in f"/{path}")
    ]


def paths() -> Iterator[tuple[str, str]]:
    for title, text in SECTIONS.items():
        for span in spans(text):
            if span.endswith(ENDINGS) and " " not in span and span not in ELSEWHERE:
                yield title, span


def test_there_are_recipes() -> None:
    assert len(SECTIONS) >= 12 and len(list(paths())) > 60


@pytest.mark.parametrize(("title", "span"), sorted(set(paths())))
def test_each_path_is_that_of_a_file_or_folder(title: str, span: str) -> None:
    assert named(span), f"{title}: {span} does not exist, correct its path in ops/guides/contributing.md"


@pytest.mark.parametrize("title", SECTIONS)
def test_a_recipe_has_ten_lines_at_most(title: str) -> None:
    assert len([line for line in SECTIONS[title].splitlines() if line]) <= 10, "link to a guide for details"


@pytest.mark.parametrize("title", SECTIONS)
def test_each_name_of_code_occurs_in_a_file_that_its_recipe_names(title: str) -> None:
    text = SECTIONS[title]
    tiers = set(read_tiers().tiers)
    read = "\n".join(
        files()[path].read_text(encoding="utf-8", errors="ignore")
        for path in sorted({path for span in spans(text) for path in named(span)})
    )
    names = {span for span in spans(text) if NAME.fullmatch(span)} - tiers - ELSEWHERE
    patterns = {name: name.replace("NAME", r"\w+") for name in names}
    lost = sorted(name for name, pattern in patterns.items() if not re.search(rf"\b{pattern}\b", read))
    assert lost == [], "no file that this recipe names has them"


@pytest.mark.parametrize("title", SECTIONS)
def test_each_tier_that_a_recipe_names_is_one(title: str) -> None:
    found = re.findall(r"\btiers? `(\w+)`(?: and `(\w+)`)?", SECTIONS[title])
    assert {tier for pair in found for tier in pair if tier} <= set(read_tiers().tiers)
