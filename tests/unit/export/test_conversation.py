"""Exports give a result to the call that its record names, in any order and however late."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.contracts.states import StepKind
from orchestrator.export.atif import _Turns
from orchestrator.export.conversation import Conversations

CALLS = [{"name": "bash", "arguments": {"command": command}} for command in ("rm", "ls")]
ASK = {"role": "user", "content": "look"}
Recorded = dict[str, Any]


def step(idx: int, appended: list[Recorded], *calls: Recorded, parent: int | None = -1) -> Any:
    """A step that continues `parent`, by default the step before; None: a new conversation."""
    parent = (idx - 1 if idx else None) if parent == -1 else parent
    kind = StepKind.ROOT if parent is None else StepKind.CONTINUES
    stored = SimpleNamespace(idx=idx, kind=kind, parent=parent)
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
    messages = Conversations(steps).before(steps[1])
    assert [(one.text, one.answers) for one in messages if one.role == "tool"] == expected


def test_a_result_that_comes_late_stands_with_its_call() -> None:
    steps = [
        step(0, [ASK], *CALLS),
        step(1, [result("2", SECOND)], CALLS[0]),
        step(2, [result("1", LATE), result("3", FIRST)]),
    ]
    messages = Conversations(steps).before(steps[2])
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


def test_a_second_answer_to_a_history_and_a_new_one_are_conversations_of_their_own() -> None:
    steps = [
        step(0, [ASK], CALLS[0]),
        step(1, [result("1", FIRST)], CALLS[1]),
        step(2, [result("2", FIRST)]),
        step(3, [result("again", FIRST)], parent=0),
        step(4, [ASK], parent=None),
        step(5, [result("late", {"call": 0, "name": "bash", "back": 1})], parent=2),
    ]
    found = Conversations(steps)
    texts = {each.idx: [one.text for one in found.before(each)] for each in steps}
    assert texts[2] == ["look", "", "1", "", "2"] and texts[5] == [*texts[2], "", "late"]
    assert texts[3] == ["look", "", "again"] and texts[4] == ["look"]
    assert [[one.text for one in found.added(each)] for each in steps[3:]] == [["again"], ["look"], ["late"]]
    assert found.before(steps[5])[-1].answers == "call_s0_0"


def test_the_work_for_the_rows_of_an_attempt_grows_with_its_turns() -> None:
    def calls(turns: int) -> int:
        """How many functions are called for the messages of an attempt of so many turns."""
        first = step(0, [ASK], *CALLS)
        steps = [
            first,
            *(step(i, [result("1", FIRST), result("2", SECOND)], *CALLS) for i in range(1, turns)),
        ]
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event == "call"

        found, before = Conversations(steps), sys.getprofile()
        sys.setprofile(count)
        try:
            messages = [found.added(each) for each in steps]
        finally:
            sys.setprofile(before)
        assert sum(map(len, messages)) == 2 * turns - 1
        return counted

    assert calls(400) < 2.5 * calls(200)
