"""The tier `failpoints` (./ops/test --tier failpoints) alone: a stack is killed, at every failpoint, for some minutes."""

import os

import pytest

from tests.e2e.conftest import model, pytest_runtest_makereport, stack

__all__ = ["model", "pytest_runtest_makereport", "stack"]

collect_ignore_glob = [] if os.environ.get("PENSTOCK_TIER") == "failpoints" else ["test_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failpoint", action="append", help="only these boundaries, by name: to replay a failure alone"
    )
    parser.addoption("--action", action="append", help="only these: exit, raise, delay, duplicate")


@pytest.fixture
def chosen(pytestconfig: pytest.Config) -> tuple[list[str] | None, list[str] | None]:
    """What the command line asks for: boundaries and actions, None = all."""
    return pytestconfig.getoption("--failpoint"), pytestconfig.getoption("--action")
