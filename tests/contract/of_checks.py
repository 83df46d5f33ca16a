"""The checks of the sandbox suite as a test's parameters. Those that fill the machine are marked: they run with no other test next to them."""

from collections.abc import Sequence
from typing import Final

import pytest
from _pytest.mark import ParameterSet

from sandboxes.conformance import CHECKS, ConformanceCheck

FILLS_THE_MACHINE: Final = frozenset(
    {
        "a fork bomb stays in its sandbox",
        "files in memory count as memory",
        "many small processes do not take more memory than one",
        "memory is limited",
        "programs that use up the memory do not lose their sandbox",
    }
)
assert {check.name for check in CHECKS} >= FILLS_THE_MACHINE, "a check has another name now"


def each_of(checks: Sequence[ConformanceCheck]) -> list[ParameterSet]:
    return [
        pytest.param(
            check, id=check.name, marks=[pytest.mark.alone] if check.name in FILLS_THE_MACHINE else []
        )
        for check in checks
    ]
