"""Exports give a result to the call that its record names, in any order and however late."""

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.contracts.states import StepKind
from orchestrator.export.atif import _Turns
from orchestrator.export.conversation import before

CALLS = [{"name": "bash", "arguments": {"command": command}} for command in ("rm", "ls")]
ASK = {"role": "user", "content": "look"}
Recorded = dict[str, Any]


def step(idx: int, appended: list[Recorded], *calls: Recorded) -> Any:
    kind = StepKind.CONTINUES if idx else StepKind.ROOT
    stored = SimpleNamespace(idx=idx, kind=kind, parent=idx - 1 if idx else None)
    reply = {"role": "assistant", "content": "", "tool_calls": list(calls)}
    return SimpleNamespace(idx=idx, stored=stored, appended=appended, reply=reply)


def result(text: str, *answers: Any) -> Recorded:
    return {"role": "tool", "content": text, **({"answers": answers[0]} if answers else {})}


SECOND, FIRST = {"call": 1, "name": "bash"}, {"call": 0, "name": "bash"}
LATE = {"call": 0, "name": "bash", "back": 1}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([result("2", SECOND)], [("2", "call_s0_1")]),
        ([result("2", SECOND), result("1", FIRST)], [("2", "call_s0_1"), ("1", "call_s0_0")]),
        ([result("?", None), result("1", FIRST)], [("?", None), ("1", "call_s0_0")]),
        ([result("1", FIRST), result("again", FIRST)], [("1", "call_s0_0"), ("again", "call_s0_0")]),
        (
            [result("far", {"call": 7, "name": "x"}), result("out", {"call": 0, "name": "x", "back": 9})],
            [("far", None), ("out", None)],
        ),
        ([result("1"), result("2"), result("3")], [("1", "call_s0_0"), ("2", "call_s0_1"), ("3", None)]),
    ],
    ids=["the second alone", "another order", "unknown", "twice", "out of range", "an old record"],
)
def test_a_result_is_exported_with_the_call_that_its_record_names(results: Any, expected: Any) -> None:
    steps = [step(0, [ASK], *CALLS), step(1, results)]
    messages = before(steps, steps[1])
    assert [(one.text, one.answers) for one in messages if one.role == "tool"] == expected


def test_a_result_that_comes_late_stands_with_its_call() -> None:
    steps = [
        step(0, [ASK], *CALLS),
        step(1, [result("2", SECOND)], CALLS[0]),
        step(2, [result("1", LATE), result("3", FIRST)]),
    ]
    messages = before(steps, steps[2])
    assert [(one.text, one.answers) for one in messages if one.role == "tool"] == [
        ("2", "call_s0_1"),
        ("1", "call_s0_0"),
        ("3", "call_s1_0"),
    ]
    turns = _Turns()
    for one in messages:
        turns.say(one, copied=False)
    observed = [
        [one["source_call_id"] for one in each["observation"]["results"]]
        for each in turns.steps
        if "observation" in each
    ]
    assert observed == [["call_s0_1", "call_s0_0"], ["call_s1_0"]]
