"""The tier `failpoints` (./ops/test --tier failpoints) alone: a stack is killed, at every failpoint, for some minutes."""

import os

import pytest

from orchestrator.runtime.failpoints import BOUNDARIES
from tests.e2e.conftest import model, pytest_runtest_makereport, stack

ACTIONS = ("raise", "delay", "exit", "duplicate")
__all__ = ["model", "pytest_runtest_makereport", "stack"]

collect_ignore_glob = [] if os.environ.get("PENSTOCK_TIER") == "failpoints" else ["test_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failpoint", action="append", help="only these boundaries, by name: to replay a failure alone"
    )
    parser.addoption("--action", action="append", help="only these: exit, raise, delay, duplicate")
    parser.addoption("--rotation", default="0/1", help="I/N: part I of N of the boundaries")


def part_of(config: pytest.Config) -> tuple[int, int]:
    """Part I of N; 0/1 is everything."""
    part, _, parts = str(config.getoption("--rotation")).partition("/")
    assert 0 <= int(part) < int(parts), "--rotation is I/N with 0 <= I < N"
    return int(part), int(parts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Splits the tests outside the running stack into parts; test_stack.py splits its own boundaries."""
    part, parts = part_of(config)
    starts = [item for item in items if item.path.name == "test_starts.py"]
    others = [item for at, item in enumerate(starts) if at % parts != part]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.fixture
def rotation(pytestconfig: pytest.Config) -> tuple[int, int]:
    return part_of(pytestconfig)


@pytest.fixture
def chosen(pytestconfig: pytest.Config) -> tuple[list[str] | None, list[str] | None]:
    """The boundaries and actions of the command line, None = all."""
    names, actions = pytestconfig.getoption("--failpoint"), pytestconfig.getoption("--action")
    unknown = [*({*(names or ())} - {*BOUNDARIES}), *({*(actions or ())} - {*ACTIONS})]
    assert not unknown, (
        f"unknown failpoint {unknown[0]}: see BOUNDARIES in orchestrator/runtime/failpoints.py; actions are {', '.join(ACTIONS)}"
    )
    return names, actions
