"""Which tool a name of the Responses wire means, in a choice and in a history; the same request read in this process and in another one."""

import json
from typing import Any

import msgspec
import pytest

from orchestrator.gateway.http import bodies
from orchestrator.gateway.http.dialects.base import Incoming
from orchestrator.gateway.messages.requests import CallRule
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import Problem
from tests.unit.gateway.dialect_rig import ANTHROPIC, CHAT, RESPONSES, WIRES, Wire, call, reply_of

USER = {"role": "user", "content": "go"}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


def space(name: str, *tools: str) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": [tool(one) for one in tools]}


READ, A, B = tool("read"), space("a", "read"), space("b", "read")


def read(tools: list[Any], *history: Any, **more: Any) -> Incoming:
    return RESPONSES.dialect.read({"input": [USER, *history], "tools": tools, **more}, {})


CHOICES: list[tuple[list[Any], dict[str, Any], str]] = [
    ([READ, A], {"name": "read"}, "read"),
    ([A, READ], {"name": "read"}, "read"),
    ([READ, A], {"name": "read", "namespace": None}, "read"),
    ([READ, A], {"name": "read", "namespace": "a"}, "a__read"),
    ([A, B], {"name": "read", "namespace": "b"}, "b__read"),
    ([READ, A, B], {"name": "read"}, "read"),
    ([A], {"name": "read"}, "a__read"),
    ([READ, A, B], {"name": "b__read"}, "b__read"),
    ([space("mcp__a__", "read")], {"name": "read", "namespace": "mcp__a__"}, "mcp__a__read"),
]


@pytest.mark.parametrize(("tools", "named", "flat"), CHOICES)
def test_a_choice_means_the_tool_of_its_namespace_and_name(
    tools: list[Any], named: dict[str, Any], flat: str
) -> None:
    chosen = {"type": "function", **named}
    assert read(tools, tool_choice=chosen).request.rule == CallRule(names=(flat,), required=True)
    some = {"type": "allowed_tools", "mode": "auto", "tools": [chosen]}
    assert read(tools, tool_choice=some).request.rule == CallRule(names=(flat,))


@pytest.mark.parametrize(
    ("tools", "named", "words"),
    [
        (
            [A, B],
            {"name": "read"},
            "may mean 'read' of the namespace 'a' or 'read' of the namespace 'b': give its namespace",
        ),
        ([READ, A], {"name": "read", "namespace": "b"}, "names 'read' of the namespace 'b', which no tool"),
        ([READ], {"name": "read", "namespace": "a"}, "names 'read' of the namespace 'a', which no tool"),
        ([READ, A], {"name": "write"}, "names 'write', which no tool"),
        ([READ, A], {"name": "read", "namespace": 7}, "namespace must be a string"),
        ([READ, A], {"name": "read", "server": "x"}, "has no 'server'"),
        ([READ, A], {"function": {"name": "read"}, "name": "a__read"}, "has no 'name'"),
    ],
)
def test_a_choice_that_means_no_tool_or_several_is_refused(
    tools: list[Any], named: dict[str, Any], words: str
) -> None:
    with pytest.raises(Problem, match=words) as problem:
        read(tools, tool_choice={"type": "function", **named})
    assert (problem.value.status, problem.value.param) == (400, "tool_choice")


def test_a_choice_of_a_whole_namespace_is_refused_with_what_to_send() -> None:
    with pytest.raises(Problem, match="names a namespace, which is not a tool: name its tools"):
        read([A], tool_choice={"type": "namespace", "name": "a"})


def test_a_call_of_the_history_is_of_the_tool_that_its_namespace_and_name_mean() -> None:
    gone: list[tuple[list[Any], dict[str, Any], str]] = [
        ([READ], {"name": "x"}, "x"),
        ([READ], {"name": "read", "namespace": "x"}, "x__read"),
    ]
    several: tuple[list[Any], dict[str, Any], str] = (
        [A, B],
        {"name": "read"},
        "read",
    )  # refusing the past would end the session
    for tools, named, flat in (*CHOICES, *gone, several):
        item = {"type": "function_call", "call_id": "c", "arguments": "{}", **named}
        _, turn = read(tools, item).request.turns
        assert turn.calls == (call(flat),)


def test_a_tool_of_the_history_counts_for_the_calls_before_it() -> None:
    item = {"type": "function_call", "call_id": "c", "arguments": "{}", "name": "read"}
    added = {"type": "additional_tools", "role": "developer", "tools": [A]}
    _, turn = read([], item, added).request.turns
    assert turn.calls == (call("a__read"),)


def of(wire: Wire, name: str, description: str) -> dict[str, Any]:
    shapes: dict[str, dict[str, Any]] = {
        "chat": {"type": "function", "function": {"name": name, "description": description}},
        "responses": {"type": "function", "name": name, "description": description},
        "anthropic": {"name": name, "description": description, "input_schema": {"type": "object"}},
    }
    return shapes[wire.dialect.name]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.dialect.name)
def test_two_different_tools_of_one_name_are_refused_and_one_tool_twice_is_taken(wire: Wire) -> None:
    opening = {"input" if wire is RESPONSES else "messages": [USER]}
    assert wire.dialect.read({**opening, "tools": [of(wire, "f", "x"), of(wire, "f", "x")]}, {}).request.tools
    with pytest.raises(Problem, match="two different tools are called 'f': rename one"):
        wire.dialect.read({**opening, "tools": [of(wire, "f", "x"), of(wire, "f", "y")]}, {})


def test_a_tool_of_the_history_that_differs_from_an_offered_one_is_left_out() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [tool("read", description="other")]}
    assert read([READ], added).request.left_out == 1


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, ANTHROPIC], ids=lambda wire: wire.dialect.name)
def test_a_request_that_another_process_reads_is_the_same_request_and_has_the_same_reply(wire: Wire) -> None:
    raw = json.dumps(wire.body(["hello"])).encode()
    here = bodies.read(wire.dialect, raw, {})
    apart = bodies._answer(wire.dialect.name, raw, {}, 10_000, False, {})
    assert apart.problem is None
    packed = msgspec.msgpack.encode(apart)
    there = msgspec.msgpack.decode(packed, type=bodies._Read).incoming
    assert there is not None and there.request == here.request
    reply = reply_of(Turn(role="assistant", text="", calls=(call("mcp__files__read", path="x"),)))
    written = [json.dumps(wire.dialect.reply(one, reply)) for one in (here, there)]
    assert [
        '"name": "read", "status": "completed", "namespace": "mcp__files__"' in one for one in written
    ] == [wire is RESPONSES] * 2
