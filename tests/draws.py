"""Comparisons of times in one run. A pause of the machine in the wrong moment spoils one measurement, so the majority of three judges."""

from collections.abc import Awaitable, Callable, Mapping

DRAWS = 3


async def most_hold(measure: Callable[[], Awaitable[Mapping[str, bool]]]) -> None:
    """Measure until two of at most three draws hold. `measure` returns comparison → whether it holds; a draw holds if all of its comparisons do.

    Raises AssertionError, with what did not hold in each draw, when two draws miss.
    """
    held, missed = 0, list[list[str]]()
    while held < 2:
        compared = await measure()
        assert compared, "a draw compares something"
        if all(compared.values()):
            held += 1
        else:
            missed.append([what for what, holds in compared.items() if not holds])
        assert len(missed) <= DRAWS - 2, f"two of {DRAWS} draws missed: {missed}"
