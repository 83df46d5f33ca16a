"""Conditions that the runs of the control `flaky` vary: random draws, the order of tests, the time zone, the clock.

| varied | how |
|---|---|
| draws | `$PENSTOCK_SEED`, which also seeds bash's RANDOM, and PYTHONHASHSEED |
| order | a hook at the end of tests/conftest.py shuffles the tests that pytest collects below /tests |
| time zone | TZ, from UTC-12 to UTC+14: also another date; not where the task sets TZ |
| clock | libfaketime, if the sandbox has it: some months later |

Each varied run differs in one of them from the plain runs, so that the difference has a name.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.tasks.vetting.findings import TaskFault
from sandboxes.base import AnyFile, File

CONFTEST: Final = "conftest.py"
PYTEST: Final = b"pytest"
FAKETIME: Final = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/local/lib/faketime/libfaketime.so.1",
)
"""Places of libfaketime in a sandbox."""
ZONES: Final = ("Etc/GMT+12", "Etc/GMT-14", "Etc/GMT-5")
DAYS: Final = (100, 270, 800)

_SHUFFLE: Final = """

import random as _penstock_random
import pytest as _penstock_pytest

def _penstock_order(items):
    {order}

try:
    @_penstock_pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
    def pytest_penstock_order(items):
        _penstock_order(items)
except TypeError:  # pluggy before 1.0: the module keeps its own hooks, so an object of its own has this one
    class _PenstockOrder:
        @_penstock_pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items):
            _penstock_order(items)

    _penstock_configure = globals().get("pytest_configure")

    def pytest_configure(config):
        if _penstock_configure is not None:
            _penstock_configure(*[config][: _penstock_configure.__code__.co_argcount])
        config.pluginmanager.register(_PenstockOrder())
"""
AS_WRITTEN: Final = -1
"""The order of tests with the hook, which leaves it as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The conditions of one run. `seed`: of its draws; `order`: 0 as written, 1 reversed, above shuffled, `AS_WRITTEN`; `env`: more variables, of
    agent and tests; `blames`: the fault, if only such runs differ."""

    name: str
    blames: TaskFault = TaskFault.RANDOM
    seed: int = 0
    order: int = 0
    env: Mapping[str, str] = field(default_factory=dict)


PLAIN: Final = Condition(name="as it is")
HOOKED: Final = Condition(
    name="order of tests as written", blames=TaskFault.ORDER_DEPENDENT, order=AS_WRITTEN
)
"""A run under it differs if the hook itself changes something, not the order."""


def plan(
    times: int, tests: Mapping[str, AnyFile], faketime: str = "", pinned: Collection[str] = ()
) -> list[Condition]:
    """The varied runs of one control: `times` for each thing that this task and its sandboxes let us vary. `tests`: below tests/;
    `faketime`: the library's path in the sandbox, empty without it; `pinned`: variables that the task sets, which never differ in a run."""
    found = []
    for n in range(times):
        found.append(Condition(name=f"draws {n + 1}", blames=TaskFault.DRAW_DEPENDENT, seed=7919 * (n + 1)))
        if clock := _clock(n, faketime, pinned):
            found.append(clock)
        if ordered(tests):
            order = "reversed" if n == 0 else f"shuffled {n}"
            found.append(
                Condition(name=f"order of tests {order}", blames=TaskFault.ORDER_DEPENDENT, order=n + 1)
            )
    return found


def _clock(n: int, faketime: str, pinned: Collection[str]) -> Condition | None:
    zone, days = ZONES[n % len(ZONES)], DAYS[n % len(DAYS)]
    env, names = {}, []
    if "TZ" not in pinned:
        env["TZ"] = zone
        names.append(f"TZ={zone}")
    if faketime and "LD_PRELOAD" not in pinned:
        env |= {"LD_PRELOAD": faketime, "FAKETIME": f"+{days}d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        names.append(f"{days} days later")
    if not names:
        return None
    return Condition(name=", ".join(names), blames=TaskFault.CLOCK_DEPENDENT, env=env)


def varies(conditions: Sequence[Condition], pinned: Collection[str] = ()) -> str:
    """The conditions that the runs vary, and the one that the task pins, for the report.

    >>> varies([Condition(name="a", seed=1), Condition(name="b", env={"TZ": "UTC"})])
    'draws, time zone'
    >>> varies([Condition(name="a", seed=1)], ["TZ"])
    'draws; time zone pinned by the task'
    """
    words = {
        "draws": any(c.seed for c in conditions),
        "order of tests": any(c.order for c in conditions),
        "time zone": any("TZ" in c.env for c in conditions),
        "clock": any("FAKETIME" in c.env for c in conditions),
    }
    listed = ", ".join(word for word, varied in words.items() if varied)
    return f"{listed}; time zone pinned by the task" if "TZ" in pinned else listed


def ordered(tests: Mapping[str, AnyFile]) -> bool:
    """Whether pytest runs the tests: only its order can be varied."""
    return any(PYTEST in file.data for file in tests.values())


def in_order(tests: Mapping[str, AnyFile], order: int) -> dict[str, AnyFile]:
    """The tests, with a hook that makes pytest run them in another order."""
    if order == 0:
        return dict(tests)
    lines = {AS_WRITTEN: "pass", 1: "items.reverse()"}
    line = lines.get(order, f"_penstock_random.Random({order}).shuffle(items)")
    hook = _SHUFFLE.format(order=line).encode()
    own = tests[CONFTEST].data if CONFTEST in tests else b""
    return {**tests, CONFTEST: File(own + hook)}
