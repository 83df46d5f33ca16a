"""The examples in the docstrings are true."""

import doctest
from types import ModuleType

import pytest

from orchestrator.rewards import batch_scale, comparison, composite, process, returns, signals, speed


@pytest.mark.parametrize(
    "module",
    [batch_scale, comparison, composite, process, returns, signals, speed],
    ids=lambda m: m.__name__.split(".")[-1],
)
def test_every_worked_example_gives_the_numbers_that_it_shows(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried > 0 and failed == 0
