"""One table over the whole public API: a value that an argument cannot take is refused by one sentence that begins with the argument's name. No
service runs here, so a call that lets such a value pass fails by another error."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import orchestrator.api
import orchestrator.api.testing
from orchestrator.api import ArgumentError, Run, Task, TrajectoryFilters
from orchestrator.api.testing import Reply
from orchestrator.contracts.states import RunState
from orchestrator.deploy.home import Home, write_template
from orchestrator.pool.engine import DRIVER
from orchestrator.pool.runs import StoredRun
from orchestrator.settings.config import load
from sandboxes.base import File

GIVEN = (Run, Task, Reply)
"""Classes whose functions a user calls with values of their own. The API makes the others."""
MADE = {
    "Evaluation",
    "EvaluationPoint",
    "LeftOut",
    "Published",
    "RecordedReward",
    "RecordedVerdict",
    "Services",
    "Step",
    "SubmittedGroup",
    "ToolExecution",
    "TrainedBatch",
    "Trajectory",
    "TrajectoryFilters",
    "Unscored",
}
INSIDE = {
    "Task": {"bundle", "settings", "received"},  # made by its class methods
    "Task.of": {"limits", "received", "accepted"},
    "Task.called": {"place"},
    "Task.environment": {"bases", "containers", "where_needed"},
    "Task.verification": {"bases", "containers", "where_needed"},
    "Task.seen_by_tests": {"left", "environment"},
    "Run": {"home", "config", "own", "engine", "stored"},  # made by `connect`
}
"""Parameters that only the product gives."""
FILES: dict[Any, Any] = {"task.toml": b"", "instruction.md": b"Write hi.", "tests/test.sh": b"true"}

OTHER = (object(), {1}, b"x", ["a"], {"a": "b"})
TEXT = (None, 5, *OTHER)
WORDS = (5, *OTHER, "a\0", "\udcff")
NUMBER = (-1, 2**70, 10**5000, 1.0, True, "3", *OTHER)
SECONDS = (-1, float("nan"), -float("inf"), 10**400, 1j, True, "3", *OTHER)
FLAG = (1, "no", np.True_, *OTHER)
PLACE = (None, "", 5, object(), {1}, b"x", ["a"], "a\0b", "a\ud800", "a" * 5000)
EACH = (5, object(), "a", b"x")
MODEL = (*(value for value in PLACE if value is not None), "/nowhere")
SCAFFOLD = (5, object(), b"x", ["shell"], Path, "a\0", "a\0.py", "a\0/b")


async def later(*_: object) -> None: ...


def nested(depth: int) -> dict[str, Any]:
    """That many mappings, each in another one."""
    return {"a": nested(depth - 1)} if depth else {}


CALLBACK = (None, "print", 5, later, lambda: None, functools.partial(later), Reply)
TRAJECTORIES: dict[str, tuple[object, ...]] = {
    "limit": NUMBER,
    "task": WORDS,
    "submissions": (5, object(), b"x", [5], [None], ["a\0"], np.array(5)),
    "rollouts": (*EACH, np.array(5), ["1"], [None], [True], [1.0], [-1], [2**70]),
    "groups": (*EACH, np.array(5), ["1"], [None], [True], [1.0], [-1], [2**70]),
    "purpose": (*WORDS, "play", ""),
    "label": WORDS,
    "domain": WORDS,
    "scaffold": SCAFFOLD,
    "state": (*WORDS, "ready to go", ""),
    "versions": (-1, 2**40, "3", True, 1.0, (), (1,), (1, 2, 3), (9, 3), ("1", 2), *OTHER),
    "since": ("2d", 5, timedelta(days=-1), float("nan"), *OTHER),
    "every_attempt": FLAG,
}
WRONG: dict[str, dict[str, tuple[object, ...]]] = {
    "connect": {"config": PLACE, "overrides": (*EACH, None, [5], [None], ["a\0"])},
    "register_scaffold": {
        "config": PLACE,
        "scaffold": (None, *SCAFFOLD),
        "share": (None, float("inf"), *SECONDS),
    },
    "start_run": {
        "scaffolds": (*EACH, None, [], Path, [5], [None], [Path], ["a\0"]),
        "replies": (*EACH, None, [], Reply(), [Reply(), "hi"], [None], Reply, later, lambda: Reply()),
        "servers": (
            *EACH,
            None,
            [5],
            ["a:1"],
            ["http://a:1?b"],
            ["http://a:1", "http://a:1/"],
            ["http://a:1\0"],
        ),
        "model": MODEL,
        "settings": (
            5,
            "queue",
            [("queue", {})],
            {"queue": 3},
            {"queue": None},
            {"queue.group_size": 4},
            {5: {}},
            {"queue": {5: 1}},
            {"queue": {"group_size": None}},
            {"queue": {"group_size": 2**64}},
            {"queue": {"group_size": 10**5000}},
            {"queue": {"group_size\n\n": 1j}},
            {"policy": {"model": Path("a")}},
            {"policy": {"model": b"a"}},
            {"policy": {"model": "a\0"}},
            {"policy": {"model": "\ud800"}},
            {"rollout": {"scaffolds": {"shell": np.int64(1)}}},
            {"servers": {"urls": [None]}},
            {"queue": nested(99)},
        ),
        "sandbox": (None, 5, *OTHER, "a\0"),
        "services": (5, "postgresql://a", orchestrator.api.testing.start_services()),
    },
    "start_services": {"model": MODEL},
    "Reply": {
        "text": (*TEXT, "\ud800"),
        "calls": (
            None,
            5,
            "bash",
            [5],
            ("bash", {}),
            [("bash", None)],
            [(5, {})],
            [("bash", {"a": {1}})],
            {"bash": {}},
        ),
        "raw": (5, *OTHER, "\ud800"),
        "cut": NUMBER[0:1] + NUMBER[3:],
        "after_s": (None, -1, float("nan"), True, "3", *OTHER),
    },
    "Run.publish": {
        "tasks": PLACE,
        "purpose": (*TEXT, "play", ""),
        "label": (*WORDS, "", "a b", "a" * 65),
        "scaffold": (*SCAFFOLD, "nothing", ""),
        "group_size": (0, 2**15, *NUMBER),
        "domain": (*WORDS, "", "A", "a" * 33),
        "timeout_s": (None, *SECONDS),
        "on_progress": CALLBACK,
    },
    "Run.wait": {
        "submissions": (None, *TRAJECTORIES["submissions"]),
        "timeout_s": SECONDS,
    },
    "Run.trajectories": TRAJECTORIES,
    "Run.trajectory": {"rollout_id": (None, *NUMBER)},
    "Run.trajectory_frame": TRAJECTORIES,
    "Run.step_frame": {"full": (None, *FLAG), **TRAJECTORIES},
    "Run.evaluate": {
        "tasks": PLACE,
        "suite": (*TEXT, "", "a b", "a" * 120, "a\0"),
        "version": (2**31, *NUMBER),
        "rollouts": (None, 0, 2**15, *NUMBER),
        "greedy": (None, *FLAG),
        "scaffold": (*SCAFFOLD, "nothing", ""),
        "on_progress": CALLBACK,
        "on_notice": CALLBACK,
    },
    "Run.evaluations": {"suite": WORDS, "version": (2**31, *NUMBER)},
    "Run.unscored": {"evaluation": (None, "heldout", 5, *OTHER)},
    "Task.from_files": {
        "files": (
            None,
            5,
            "task.toml",
            [("task.toml", b"")],
            {**FILES, 5: b""},
            {**FILES, "task.toml": "text"},
            {**FILES, "task.toml": None},
            {**FILES, "task.toml": bytearray()},
            {**FILES, "task.toml": File("text")},  # type: ignore[arg-type]
        )
    },
    "Task.of": {"bundle": (None, FILES, "task.toml")},
    "Task.from_message": {
        "message": (
            None,
            5,
            "a",
            [],
            {5: {}},
            {5: {}, "a": {}},
            {"files": None},
            {"files": {5: ""}},
            {"files": {"a": b""}},
        )
    },
    "Task.with_file": {"path": (None, 5, *OTHER), "body": (None, 5, "text", bytearray())},
    "Task.write": {"directory": (None, "", 5, *OTHER)},
}
NEEDED: dict[str, dict[str, object]] = {
    "register_scaffold": {"scaffold": "shell"},
    "Run.wait": {"submissions": ["a"]},
    "Run.evaluate": {"suite": "heldout"},
    "Task.with_file": {"path": "a", "body": b""},
}
"""Arguments without which a function cannot be called."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function that the public modules have, by name."""
    modules: tuple[ModuleType, ...] = (orchestrator.api, orchestrator.api.testing)
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if value in GIVEN:
                yield name, value
                for each in vars(value):
                    member = getattr(value, each)
                    if not each.startswith("_") and (inspect.isfunction(member) or inspect.ismethod(member)):
                        yield f"{name}.{each}", member
            elif inspect.isfunction(value):
                yield name, value
            elif inspect.isclass(value):
                assert issubclass(value, Exception | Enum) or name in MADE, name


def parameters(function: Callable[..., Any]) -> set[str]:
    """The names of its arguments, filters one by one."""
    found = set(inspect.signature(function).parameters) - {"self"}
    return found - {"filters"} | (set(TrajectoryFilters.__annotations__) if "filters" in found else set())


def test_the_table_has_every_argument_of_every_public_function() -> None:
    expected = {name: wanted for name, function in functions() if (wanted := parameters(function))}
    table = {name: {*WRONG.get(name, ()), *INSIDE.get(name, ())} for name in {*WRONG, *INSIDE}}
    assert table == expected


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    """A run whose services never answer."""
    file = write_template(tmp_path / "first", "first", "")
    engine = create_async_engine(DRIVER, connect_args={"host": "127.0.0.1", "port": 1})
    config = load(file)
    stored = StoredRun(run_id=1, name="first", state=RunState.ACTIVE, config=config.to_json())
    yield Run(Home.at(file), config=config, own=config, engine=engine, stored=stored)
    await engine.dispose()


async def call(function: Callable[..., Any], given: tuple[object, ...], named: Mapping[str, object]) -> None:
    """Call it, and wait for what it gives."""
    made = function(*given, **named)
    if hasattr(made, "__aenter__"):
        async with made:
            return
    if inspect.isasyncgen(made):
        await anext(made)
    elif inspect.isawaitable(made):
        await made


@pytest.mark.anyio
@pytest.mark.parametrize("name", WRONG)
async def test_a_value_that_an_argument_cannot_take_is_refused_by_the_arguments_name(
    name: str, run: Run, tmp_path: Path
) -> None:
    function = dict(functions())[name]
    owner: Any = run if name.startswith("Run.") else Task.from_files(FILES)
    if "." in name and not inspect.ismethod(function):
        function = getattr(owner, name.partition(".")[2])
    before: dict[str, object] = {"config": tmp_path / "first"} if name == "register_scaffold" else {}
    wrong = []
    for argument, values in WRONG[name].items():
        for value in values:
            several = argument == "tasks"
            named: dict[str, object] = {
                **before,
                **NEEDED.get(name, {}),
                **({} if several else {argument: value}),
            }
            try:
                await call(function, (value,) if several else (), named)
                wrong.append(
                    (argument, f"{value!r:.60}" if not isinstance(value, int) else "a number", "passed")
                )
            except ValueError as error:
                sentence = str(error)
                by_name = isinstance(error, ArgumentError) and error.argument == argument
                if not (by_name or name == "Task.from_message") or "\n" in sentence or len(sentence) > 500:
                    wrong.append((argument, type(error).__name__, sentence))
            except Exception as error:  # noqa: BLE001 (whatever comes out is the fault)
                wrong.append((argument, type(error).__name__, str(error)))
    assert wrong == []


@pytest.mark.anyio
async def test_values_that_arguments_can_take_come_as_far_as_the_service(run: Run) -> None:
    calls: dict[str, list[dict[str, object]]] = {
        "wait": [
            {"submissions": "a", "timeout_s": np.float32(1)},
            {"submissions": ("a",), "timeout_s": 10**20},
        ],
        "trajectory": [{"rollout_id": np.int64(3)}],
        "trajectory_frame": [
            {"limit": 0, "versions": (None, 3), "rollouts": np.array([1]), "scaffold": "shell"}
        ],
        "evaluations": [{"suite": "heldout", "version": 0}],
    }
    for name, each in calls.items():
        for named in each:
            with pytest.raises(orchestrator.api.ServiceError):
                await call(getattr(run, name), (), named)
