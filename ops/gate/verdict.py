"""Which failures are red. A failing test runs once more, alone; it is a flake if it passes then, and few flakes are green."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ops.gate.new_tests import of
from ops.gate.results import Result

FLAKES = 2  # that are not on the list, in one run
SECOND_RUNS = 10  # where more tests fail, the change is at fault


class Why(StrEnum):
    """Why a failed test is red."""

    VIOLATION = "it found a broken invariant: no second run excuses that"
    NEW = "the change adds or changes this test: it must pass each time"
    AGAIN = "it failed again, alone"
    NOT_AGAIN = "it had no second run"


@dataclass(frozen=True, slots=True)
class Judged:
    """One failed test: its part, and why it is red; None: it passed alone, a flake."""

    part: str
    result: Result
    why: Why | None


def judge(part: str, result: Result, again: Mapping[str, Result], new: Collection[str]) -> Judged:
    """A failed test, with the results of the second run."""
    second = again.get(result.test)
    if result.violation or (second is not None and second.violation):
        return Judged(part, result, Why.VIOLATION)
    if of(result.test) in new:
        return Judged(part, result, Why.NEW)
    if second is None or second.skipped:
        return Judged(part, result, Why.NOT_AGAIN)
    return Judged(part, result, Why.AGAIN if second.failed else None)


def unlisted(judged: Collection[Judged], listed: Collection[str]) -> list[str]:
    """The tests that flaked and are not on the list."""
    return [one.result.test for one in judged if one.why is None and one.result.test not in listed]


def too_many(flakes: Collection[str]) -> str:
    """The sentence if more tests that are not on the list flake than may; "" if not."""
    return f"{len(flakes)} tests flake, {FLAKES} at most may" if len(flakes) > FLAKES else ""
