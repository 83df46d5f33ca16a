"""The house speaks plain modern English: archaic words are counted, and none may come back."""

import ast
import io
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.test_architecture import FILES, REPOSITORY

BANNED = (
    "anew", "asked", "begun", "beside", "everybody", "hears", "heard", "hence", "lest", "meanwhile", "nobody", "said", "somebody",
    "thereof", "told", "wherein", "whoever",
)  # fmt: skip
GAP = r"(?:\s+(?:(?:#|//|--|\*)\s+)?)"  # between two words: also the end of a line, and the sign of a comment at the start of the next
PHRASES = ("for ever", "is no(?! longer)", "of which", "so it is")
PROSE = re.compile(rf"\b(?:{'|'.join((*BANNED, *PHRASES))})\b".replace(" ", GAP), re.IGNORECASE)
IN_NAMES = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
ANY = re.compile("|".join((*BANNED, *PHRASES)).replace(" ", f"(?:{GAP}|_)"), re.IGNORECASE)
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
PRODUCT = ("orchestrator", "sandboxes", "agents", "trainer", "ops")
TEXTS = (".js", ".mjs", ".css", ".html", ".svg", ".toml", ".sql", ".sh", ".yml", ".yaml")
USER = "nobody"  # the name of a Unix user, where it is a whole string
KINDS = ("identifiers", "docstrings and comments", "messages", "guides", "tests")


def prose(text: str) -> int:
    """How many banned words and phrases a text has, those in the identifiers that it names included."""
    if not ANY.search(text):
        return 0
    names = (word for word in re.findall(r"\w+", text) if not PROSE.fullmatch(word))
    return len(PROSE.findall(text)) + sum(map(is_archaic, names))


def is_archaic(name: str) -> bool:
    """Whether an identifier holds a banned word or phrase, in any case."""
    parts = (part.lower() for part in PARTS.findall(name))
    return any(part in BANNED for part in parts) or bool(IN_NAMES.search(name.replace("_", " ")))


def of_python(source: str) -> Counter[str]:
    """Banned words of one file: in names, in docstrings and comments, and in other strings."""
    found: Counter[str] = Counter()
    if not ANY.search(source):  # most files: nothing to parse
        return found
    tree = ast.parse(source)
    docs = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = "docstrings and comments" if (node.lineno, node.col_offset) in docs else "messages"
            found[kind] += 0 if node.value == USER else prose(node.value)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    found["docstrings and comments"] += prose("\n".join(comments))
    found["identifiers"] += sum(is_archaic(token.string) for token in tokens if token.type == tokenize.NAME)
    return +found


def is_text(path: Path) -> bool:
    """Whether a file of the product that is not Python has texts for people or comments: shell scripts have no suffix."""
    if path.suffix:
        return path.suffix in TEXTS or path.parent.name == "dashboards"
    with path.open("rb") as file:
        return file.readline().startswith((b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash"))


@cache
def counted() -> dict[str, list[str]]:
    """The files with banned words, by kind."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in FILES:
        name = path.relative_to(REPOSITORY)
        product = name.parts[0] in (*PRODUCT, "migrations") and "vendor" not in name.parts[:-1]
        words: Counter[str] = Counter()
        if path.suffix == ".md" and name.parts[:2] not in (("ops", "benchmarks"), ("ops", "decisions")):
            words["guides"] = prose(path.read_text(encoding="utf-8"))
        elif path.suffix == ".py" and name != Path("tests/architecture/test_words.py"):
            words = of_python(path.read_text(encoding="utf-8"))
            words = words if product else Counter({"tests": words.total()})
        elif (product or name.parts[0] == "tests") and is_text(path):
            words["messages" if product else "tests"] = prose(path.read_text(encoding="utf-8"))
        for kind, number in words.items():
            found[kind] += [str(name)] * bool(number)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_archaic_word_is_left(kind: str) -> None:
    assert counted()[kind] == []


def test_no_docstring_begins_with_a_clause() -> None:
    """A docstring names its subject by a noun: "The files that …", not "What …"."""
    texts = (path for path in FILES if path.suffix == ".py")
    assert [
        str(path)
        for path in texts
        if re.search(r'^\s*"""What\b', path.read_text(encoding="utf-8"), re.MULTILINE)
    ] == []


def test_a_word_is_counted_where_it_stands() -> None:
    source = '"""Said anew."""\ntold_s = 1  # nobody knows\nprint("there is no rollout, whoever asked")\n'
    assert of_python(source) == {"docstrings and comments": 3, "identifiers": 1, "messages": 3}
    assert prose("It is not a number; beside the point") == 1
    assert prose("The run is no longer active") == 0
    assert prose("The run is no\nlonger active") == 0
    assert prose("some rows, all of\n    which are old; -- so it\n-- is") == 2
    assert prose("const SAID_MS = 1500; mostSaid(); a.is_no_number") == 3
    assert of_python('bar("beside_large_over_alone")') == {"messages": 1}
    assert of_python("x = 1  # rows, some of\n# which are old\n") == {"docstrings and comments": 1}


@pytest.mark.parametrize(
    "name",
    ["_TOLD_LINES", "SAID", "mostSaid", "NOBODY_LISTENS", "test_it_is_no_number", "not_for_ever", "OF_WHICH"],
)
def test_a_name_is_archaic_in_any_case(name: str) -> None:
    assert is_archaic(name) and of_python(f"{name} = 1") == {"identifiers": 1}


@pytest.mark.parametrize(
    "name", ["BESIDES", "MASKED", "it_is_no_longer_active", "forever", "is_none", "unheard"]
)
def test_a_name_is_plain_if_a_banned_word_is_only_a_part_of_its_words(name: str) -> None:
    assert not is_archaic(name)
