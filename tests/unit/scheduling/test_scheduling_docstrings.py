"""The examples in the docstrings are true."""

import doctest
from types import ModuleType

import pytest

from orchestrator.scheduling import admission, batching, breaker, completion, window


@pytest.mark.parametrize(
    "module", [admission, batching, breaker, completion, window], ids=lambda m: m.__name__.split(".")[-1]
)
def test_every_worked_example_gives_the_numbers_that_it_shows(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried > 0 and failed == 0
