"""Every counter of a run has a meaning in words."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.bus import subjects
from orchestrator.pool import counter_names, transitions
from orchestrator.pool.counter_names import MEANINGS, NAMES, UNKNOWN, meaning
from orchestrator.pool.ingest import Fate

ROOT = Path(__file__).parents[3] / "orchestrator"
STREAMS = [each.name for each in vars(subjects).values() if isinstance(each, subjects.Stream)]
# The only two names that are composed of parts.
STEPS, LETTERS = "f'steps_{outcome}'", "f'{letter.stream.lower()}_refused'"


def named(call: ast.Call) -> Iterator[str]:
    """The names that a call may count under: literals, or those of an f-string over `Fate`."""
    for argument in call.args[-2:]:
        for node in ast.walk(argument):
            if isinstance(node, ast.JoinedStr):
                template = ast.unparse(node)
                assert template in (STEPS, LETTERS), f"{template}: which names are these?"
                steps = [f"steps_{fate}" for fate in Fate if fate is not Fate.NEW]
                yield from steps if template == STEPS else [f"{stream.lower()}_refused" for stream in STREAMS]
                return
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_counter_that_the_code_counts_says_what_it_means() -> None:
    found = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of = ast.unparse(node.func)
            if of in ("transitions.count", "self._count"):
                found |= set(named(node))
    assert {name for name in found if meaning(name) == UNKNOWN} == set(), (
        "orchestrator/pool/counter_names.py says what each means"
    )
    assert set(MEANINGS) <= found, "nothing counts so any more"
    assert found <= NAMES
    assert all(meaning[0].islower() and len(meaning) > 20 for meaning in MEANINGS.values())


def test_the_streams_of_refused_messages_are_those_of_the_bus() -> None:
    assert set(counter_names.STREAMS) == {stream.name for stream in subjects.STREAMS} == set(STREAMS)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["", "of_tomorrow", "x" * 100_000, "any.subject_refused"])
async def test_a_name_that_is_not_a_counter_reaches_no_database(name: str) -> None:
    no_connection = cast(Any, None)
    with pytest.raises(AssertionError, match="is not a counter"):
        await transitions.count(no_connection, 1, name)
