"""Results of tools belong to the calls whose ids they name: in the turns, in templates that print names, in the records."""

from typing import Any

import pytest

from orchestrator.gateway.messages.answers import UNKNOWN, Answers
from orchestrator.gateway.messages.requests import CompletionRequest, Reply
from orchestrator.gateway.messages.turns import Turn, read_messages
from orchestrator.gateway.problems import Problem
from tests.unit.gateway.dialect_rig import CHAT, COMMAND, call, fold_chat, reply_of, streamed

ASK = {"role": "user", "content": "go"}


def calling(*calls: tuple[str | None, str]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": one, "function": {"name": name, "arguments": "{}"}} for one, name in calls],
    }


def result(identifier: str | None, text: str, **more: Any) -> dict[str, Any]:
    answered = {} if identifier is None else {"tool_call_id": identifier}
    return {"role": "tool", "content": text, **answered, **more}


def answered(*messages: dict[str, Any]) -> list[tuple[str, Any]]:
    turns, _ = read_messages([ASK, *messages])
    assert [Turn.from_plain(turn.plain()) for turn in turns if turn.role == "tool"] == [
        t for t in turns if t.role == "tool"
    ]
    return [(turn.text, turn.answers) for turn in turns if turn.role == "tool"]


TWO = calling(("x", "rm"), ("y", "ls"))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([TWO, result("y", "2")], [("2", Answers(0, 1, "ls"))]),
        ([TWO, result("y", "2"), result("x", "1")], [("1", Answers(0, 0, "rm")), ("2", Answers(0, 1, "ls"))]),
        ([TWO, result("unknown", "?"), result("x", "1")], [("1", Answers(0, 0, "rm")), ("?", UNKNOWN)]),
        ([TWO, result("x", "1"), result("x", "again")], [("1", Answers(0, 0, "rm")), ("again", Answers(0, 0, "rm"))]),
        ([TWO, result(None, "1"), result(None, "2"), result(None, "3")], [("1", Answers(0, 0, "rm")), ("2", Answers(0, 1, "ls")), ("3", UNKNOWN)]),
        ([TWO, result(None, "2", name="ls")], [("2", Answers(0, 1, "ls"))]),
        ([calling(("x", "rm"), ("x", "ls")), result("x", "1"), result("x", "2")], [("1", Answers(0, 0, "rm")), ("2", Answers(0, 1, "ls"))]),
        (
            [TWO, result("y", "2"), calling(("z", "cat")), result("z", "3"), result("x", "late")],
            [("2", Answers(0, 1, "ls")), ("3", Answers(0, 0, "cat")), ("late", Answers(1, 0, "rm"))],
        ),
        ([calling(("x", "rm")), result("x", "1"), calling(("x", "ls")), result("x", "2")], [("1", Answers(0, 0, "rm")), ("2", Answers(0, 0, "ls"))]),
    ],
    ids=["the second alone", "in another order", "an unknown id", "twice", "without ids", "by name", "equal ids", "late", "an id used again"],
)  # fmt: skip
def test_a_result_answers_the_call_whose_id_it_names(messages: list[Any], expected: list[Any]) -> None:
    assert answered(*messages) == expected


def test_the_same_text_for_another_call_is_another_message_unless_one_does_not_say() -> None:
    first, second = (Turn(role="tool", text="ok", answers=Answers(0, place, "ls")) for place in (0, 1))
    old = Turn.from_plain({"role": "tool", "content": "ok"})
    assert not first.same(second) and old.same(first) and second.same(old)


FUNCTION = {"name": "count_trees", "description": "Count.", "parameters": COMMAND}


def legacy(**more: Any) -> CompletionRequest:
    return CHAT.dialect.read({"messages": [ASK], "functions": [FUNCTION], **more}, {}).request


def test_the_first_form_of_tools_is_translated_with_its_history() -> None:
    called = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "count_trees", "arguments": '{"kind": "oak"}'},
    }
    request = legacy(messages=[ASK, called, {"role": "function", "name": "count_trees", "content": "2"}])
    assert [tool["function"]["name"] for tool in request.tools] == ["count_trees"]
    assert [one.name for one in request.turns[1].calls] == ["count_trees"]
    assert (request.turns[2].role, request.turns[2].text, request.turns[2].answers) == (
        "tool",
        "2",
        Answers(0, 0, "count_trees"),
    )
    assert request.rule.most == 1, "a reply in this form holds one call"
    assert legacy(function_call="none").rule.most == 0
    assert legacy(function_call={"name": "count_trees"}).rule.required


FIRST_FORM_WRONG: list[dict[str, Any]] = [
    {"tools": [{"type": "function", "function": FUNCTION}]},
    {"functions": [3]},
    {"functions": "x"},
    {"function_call": {"name": "x"}},
]


@pytest.mark.parametrize("body", FIRST_FORM_WRONG)
def test_what_the_first_form_cannot_mean_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(Problem, match="function"):
        legacy(**body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_to_the_first_form_has_a_function_call(stream: bool) -> None:
    incoming = CHAT.dialect.read({"messages": [ASK], "functions": [FUNCTION]}, {})
    reply: Reply = reply_of(
        Turn(role="assistant", text="", reasoning=None, calls=(call("count_trees", kind="oak"),))
    )
    whole = fold_chat(streamed(CHAT, incoming, reply)) if stream else CHAT.dialect.reply(incoming, reply)
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "function_call" and not choice["message"].get("tool_calls")
    assert choice["message"]["function_call"] == {"name": "count_trees", "arguments": '{"kind":"oak"}'}


def test_a_custom_tool_of_the_chat_wire_takes_one_string_and_is_called_as_one() -> None:
    tool = {
        "type": "custom",
        "custom": {"name": "patch", "description": "Patch.", "format": {"type": "text"}},
    }
    incoming = CHAT.dialect.read({"messages": [ASK], "tools": [tool]}, {})
    assert incoming.request.left_out == 0 and incoming.request.tools[0]["function"]["parameters"][
        "required"
    ] == ["input"]
    reply = reply_of(
        Turn(role="assistant", text="", reasoning=None, calls=(call("patch", input="*** Begin"),))
    )
    (made,) = CHAT.dialect.reply(incoming, reply)["choices"][0]["message"]["tool_calls"]
    assert made == {"id": "call_s0_0", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    turns, _ = read_messages([ASK, {"role": "assistant", "tool_calls": [made]}, result("call_s0_0", "done")])
    assert turns[1].same(reply.turn) and reply.turn.same(turns[1])
