"""The state in which programs begin, as the guide has it and as `penstock doctor --sandbox` judges it."""

from pathlib import Path

import pytest

from sandboxes.beginning import NAMES, differences, parse_limits, shown
from sandboxes.conformance.starter import ODDITIES, OF_ROOT
from sandboxes.inside.confine import FIXED_LIMITS, NO_LIMIT, Resource, allowed, resource_limits

GUIDE = Path(__file__).parents[3] / "ops/guides/cluster-sandboxes.md"
USUAL = {NAMES[number]: (shown(soft), shown(hard)) for number, (soft, hard) in FIXED_LIMITS.items()}


def test_the_guide_names_every_fixed_limit_with_its_value() -> None:
    text = GUIDE.read_text()
    for number, (soft, hard) in FIXED_LIMITS.items():
        row = f"| `{number.name}` ({NAMES[number].removeprefix('Max ')}) | {shown(soft)} | {shown(hard)} |"
        assert row in text, row
    for name in ("FSIZE", "CPU", "DATA", "NPROC"):
        assert f"| `{name}`" in text


def test_a_limit_that_cannot_be_raised_is_taken_as_far_as_it_goes() -> None:
    assert allowed((8, NO_LIMIT), 100) == (8, 100)
    assert allowed((8, NO_LIMIT), 4) == (4, 4)
    assert allowed((8, NO_LIMIT), NO_LIMIT) == (8, NO_LIMIT)
    assert allowed((0, 0), 100) == (0, 0)


@pytest.mark.parametrize("alone", [True, False])
def test_every_limit_that_the_kernel_has_is_set(alone: bool) -> None:
    limits = {"disk_mb": 2, "cpu_s": 1.5, "memory_mb": 3, "processes": 7}
    found = resource_limits(limits, alone=alone)
    assert {*found} == {*Resource}
    assert (found[Resource.CPU], found[Resource.FSIZE]) == ((3, 3), (2 << 20, 2 << 20))
    assert (found[Resource.NPROC] == (7, 7)) is alone


def test_another_limit_or_niceness_is_named_and_the_fixed_ones_are_none() -> None:
    assert [*differences(USUAL, "0")] == []
    odd = {**USUAL, "Max open files": ("300", "1000")}
    assert [*differences(odd, "7")] == [
        "open files: 300 and 1000 (soft and hard) in place of 4096 and 4096",
        "niceness: 7 in place of 0",
    ]
    here = parse_limits(Path("/proc/self/limits").read_text())
    assert {*NAMES.values()} <= {*here} and here["Max open files"][0].isdigit()


def test_the_suite_has_at_least_eight_odd_starters() -> None:
    assert len(ODDITIES) - 1 >= 8 and len(OF_ROOT) == 2
