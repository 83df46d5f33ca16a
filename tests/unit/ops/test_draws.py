"""The majority of three draws judges a comparison of times (tests/draws.py)."""

import re
from collections.abc import Mapping, Sequence

import pytest

from tests.draws import most_hold

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("draws", "holds"),
    [
        ([True, True], True),
        ([True, False, True], True),
        ([False, True, True], True),
        ([False, False], False),
        ([True, False, False], False),
        ([False, True, False], False),
    ],
)
async def test_two_of_three_draws_judge_and_none_is_made_that_cannot_change_it(
    draws: Sequence[bool], holds: bool
) -> None:
    left = list(draws)

    async def measure() -> Mapping[str, bool]:
        return {"a < b": True, f"b < c, draw {len(draws) - len(left)}": left.pop(0)}

    if holds:
        await most_hold(measure)
    else:
        missed = [[f"b < c, draw {number}"] for number, one in enumerate(draws) if not one]
        with pytest.raises(AssertionError, match="^" + re.escape(f"two of 3 draws missed: {missed}")):
            await most_hold(measure)
    assert left == []


async def test_a_draw_that_compares_nothing_holds_nothing() -> None:
    async def measure() -> Mapping[str, bool]:
        return {}

    with pytest.raises(AssertionError, match="compares something"):
        await most_hold(measure)
