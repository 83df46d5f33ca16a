"""Tools with a type of the wire's own: for the policy, those that a client runs are functions, and its calls come back in the client's form."""

import json
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
from anthropic.types.beta import BetaToolUnionParam
from openai.types.responses import Response
from openai.types.responses.tool_param import ToolParam

from orchestrator.gateway.completions.grammar import read_calls
from orchestrator.gateway.completions.schema import fits
from orchestrator.gateway.http.dialects.base import Incoming
from orchestrator.gateway.messages.requests import CallRule
from orchestrator.gateway.messages.turns import CanonicalCall, Turn
from orchestrator.gateway.messages.typed_tools import ANTHROPIC as ANTHROPIC_TOOLS
from orchestrator.gateway.messages.typed_tools import RESPONSES as RESPONSES_TOOLS
from orchestrator.gateway.problems import Problem
from tests.unit.gateway.dialect_rig import (
    ANTHROPIC,
    CHAT,
    RESPONSES,
    Wire,
    call,
    fold_responses,
    reply_of,
    streamed,
)

WIRES = {wire.dialect.name: wire for wire in (CHAT, RESPONSES, ANTHROPIC)}
USER = {"role": "user", "content": "go"}
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}


def read(wire: str, *history: Any, **more: Any) -> Incoming:
    messages = [USER, *history]
    return WIRES[wire].dialect.read({"input" if wire == "responses" else "messages": messages, **more}, {})


def names(incoming: Incoming) -> list[str]:
    return [str(tool["function"]["name"]) for tool in incoming.request.tools]


def types_of(union: Any) -> list[str]:
    """Every type that the official package documents for a tool."""
    hints = [get_type_hints(one).get("type") for one in get_args(union)]
    found = [kind for hint in hints for kind in (get_args(hint) or ())]
    return sorted({kind for kind in found if isinstance(kind, str)} - {"function", "custom", "namespace"})


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        *(("anthropic", kind) for kind in types_of(BetaToolUnionParam)),
        *(("responses", kind) for kind in types_of(ToolParam)),
    ],
)
def test_every_type_that_the_official_packages_document_is_shown_left_out_or_refused_by_name(
    wire: str, kind: str
) -> None:
    known = {**ANTHROPIC_TOOLS, **RESPONSES_TOOLS}
    tool = {"type": kind, **({"name": known[kind][0]} if wire == "anthropic" and kind in known else {})}
    if kind.startswith(("computer", "browser")):
        with pytest.raises(
            Problem, match=rf"tools\[0\] is of the type '{kind}', which answers with pictures"
        ):
            read(wire, tools=[tool])
    elif kind in known:
        incoming = read(wire, tools=[tool])
        assert (names(incoming), incoming.request.left_out) == ([known[kind][0]], 0)
        assert incoming.request.tools[0]["function"]["description"]
    else:
        incoming = read(wire, tools=[tool])
        assert (names(incoming), incoming.request.left_out) == ([], 1)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "kind", ["functoin", "hologram_20300101", "bash_20300101", "", 7, "computer_20300101"]
)
def test_a_tool_of_an_unknown_type_is_refused_by_its_place_and_type(wire: str, kind: Any) -> None:
    with pytest.raises(Problem, match=rf"^tools\[1\] is of the type '{kind}'.*function tool") as problem:
        read(wire, tools=[{"type": "web_search"}, {"type": kind, "name": "x"}])
    assert (problem.value.status, problem.value.param) == (400, "tools")


def test_a_tool_without_a_type_is_refused_where_its_wire_wants_one() -> None:
    with pytest.raises(Problem, match=r"^tools\[0\] has no type: declare it as a function tool"):
        read("responses", tools=[{"name": "x", "parameters": {}}])


def test_a_tool_of_a_history_is_left_out_and_counted_and_never_refused_for_its_type() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [{"type": "hologram"}, SHELL]}
    incoming = read("responses", added)
    assert (names(incoming), incoming.request.left_out) == (["shell"], 1)


@pytest.mark.parametrize("wire", WIRES)
def test_a_function_that_only_a_providers_program_may_call_is_left_out(wire: str) -> None:
    by_program: dict[str, Any] = {"name": "a", "allowed_callers": ["code_execution_20250825"]}
    direct: dict[str, Any] = {"name": "b", "allowed_callers": ["direct", "programmatic"]}
    shapes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "chat": lambda tool: {"type": "function", "function": tool, **tool},
        "responses": lambda tool: {"type": "function", **tool},
        "anthropic": lambda tool: {"input_schema": {"type": "object"}, **tool},
    }
    shaped = shapes[wire]
    incoming = read(wire, tools=[shaped(by_program), shaped(direct)])
    assert (names(incoming), incoming.request.left_out) == (["b"], 1)


def test_a_shell_in_a_providers_container_is_left_out_and_a_local_one_is_shown() -> None:
    for environment in ({"type": "container_auto"}, {"type": "container_reference", "container_id": "c"}):
        assert read("responses", tools=[{"type": "shell", "environment": environment}]).request.left_out == 1
    for tool in (SHELL, {"type": "shell"}, {"type": "shell", "environment": None}):
        assert names(read("responses", tools=[tool])) == ["shell"]


CALLS = [
    ("shell", call("shell", commands=["ls", "pwd"], timeout_ms=9), "shell_call", {"timeout_ms": 9}),
    ("shell", call("shell", commands=[]), "shell_call", {}),
    ("local_shell", call("local_shell", command=["ls"], timeout_ms=9), "local_shell_call", {"timeout_ms": 9}),
    ("local_shell", call("local_shell", command=["ls"]), "local_shell_call", {}),
    ("local_shell", call("local_shell", command=["ls", "-l"], working_directory="/w"), "local_shell_call", {}),
    ("apply_patch", call("apply_patch", operation=PATCH), "apply_patch_call", {}),
    ("apply_patch", call("apply_patch", operation={"type": "delete_file", "path": "a"}), "apply_patch_call", {}),
]  # fmt: skip
RESULTS: list[tuple[str, dict[str, Any], str]] = [
    ("shell", {"output": [{"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}, "a"),
    ("shell", {"output": [{"stdout": "a", "stderr": "b\n", "outcome": {"type": "exit", "exit_code": 2}}]}, "a\nb\n[exit code 2]"),
    ("shell", {"output": [{"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}]}, "[timed out]"),
    ("shell", {"output": "plain"}, "plain"),
    ("local_shell", {"output": '{"stdout": "x"}'}, '{"stdout": "x"}'),
    ("apply_patch", {"status": "completed", "output": "done"}, "done"),
    ("apply_patch", {"status": "completed"}, "completed"),
    ("apply_patch", {"status": "failed", "output": "no such line"}, "Error: no such line"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "made", "item_type", "holds"), CALLS)
def test_a_call_of_a_typed_tool_is_served_as_its_item_and_comes_back_as_the_same_call(
    kind: str, made: CanonicalCall, item_type: str, holds: dict[str, Any]
) -> None:
    incoming = read("responses", tools=[{"type": kind}])
    assert fits(made.name, made.mapping(), incoming.request.tools)
    reply = reply_of(Turn(role="assistant", text="", reasoning=None, calls=(made,)), 3)
    whole = RESPONSES.dialect.reply(incoming, reply)
    output: list[Any] = [*Response.model_validate(whole).output]
    (item,) = output
    assert item.type == item_type and item.call_id == "call_s3_0"
    action = whole["output"][0].get("action", {})
    assert holds.items() <= action.items()
    assert kind != "local_shell" or None not in action.values(), "clients refuse null there"
    assert fold_responses(streamed(RESPONSES, incoming, reply))["output"] == whole["output"]
    for replayed in (whole["output"][0], json.loads(item.model_dump_json())):
        _, turn = read("responses", replayed, tools=[{"type": kind}]).request.turns
        assert turn.calls == (made,) and turn.hint == 3


@pytest.mark.parametrize(("kind", "fields", "text"), RESULTS)
@pytest.mark.parametrize("by", ["call_id", "id"])
def test_a_result_of_a_typed_tool_answers_its_call_as_text(
    kind: str, fields: dict[str, Any], text: str, by: str
) -> None:
    made = next(one for name, one, _, _ in CALLS if name == kind)
    incoming = read("responses", tools=[{"type": kind}])
    (item,) = RESPONSES.dialect.reply(
        incoming, reply_of(Turn(role="assistant", text="", reasoning=None, calls=(made,)), 3)
    )["output"]
    if by == "id" and kind != "local_shell":
        return
    for named in ({by: item["call_id"]}, {by: item["id"]}):
        result = {"type": f"{kind}_call_output", **named, **fields}
        turns = read("responses", item, result, tools=[{"type": kind}]).request.turns
        assert (turns[2].role, turns[2].text) == ("tool", text)
        assert turns[2].answers is not None and turns[2].answers.call == 0


@pytest.mark.parametrize(
    "made",
    [
        call("shell", commands=["ls", 3]),
        call("shell", commands=["ls"], user="root"),
        call("shell", commands=["ls"], timeout_ms=True),
        call("local_shell", command=["ls"], timeout_ms=1.5),
        call("apply_patch", operation={"type": "rename", "path": "a"}),
        call("apply_patch", operation={"type": "update_file", "path": "a"}),
        call("apply_patch", operation=PATCH, also=1),
    ],
)
def test_a_call_that_does_not_fit_its_item_is_served_as_it_was_made(made: CanonicalCall) -> None:
    incoming = read("responses", tools=[{"type": made.name}])
    (item,) = RESPONSES.dialect.reply(
        incoming, reply_of(Turn(role="assistant", text="", reasoning=None, calls=(made,)))
    )["output"]
    assert (item["type"], item["arguments"]) == ("function_call", made.arguments)


@pytest.mark.parametrize(
    ("name", "given", "well_formed"),
    [
        ("apply_patch", {"operation": {}}, False),
        ("apply_patch", {"operation": PATCH}, True),
        ("shell", {"commands": ["ls", 3]}, False),
        ("shell", {"commands": ["ls"], "user": "r"}, False),
        ("shell", {"commands": ["ls"]}, True),
    ],
)
def test_a_call_of_a_typed_tool_that_has_no_item_is_not_well_formed(
    name: str, given: dict[str, Any], well_formed: bool
) -> None:
    block = json.dumps({"name": name, "arguments": given})
    typed = read("responses", tools=[{"type": name}]).request.tools
    assert (read_calls("json", block, typed) is not None) == well_formed
    own = read("responses", tools=[{"type": "function", "name": name}]).request.tools
    assert read_calls("json", block, own) is not None


def test_the_environment_that_a_client_fills_into_an_action_is_not_an_argument() -> None:
    action = {"type": "exec", "command": ["ls"], "env": {"HOME": "/r"}}
    _, turn = read("responses", {"type": "local_shell_call", "call_id": "c", "action": action}).request.turns
    assert turn.calls == (call("local_shell", command=["ls"]),)


def test_a_call_that_a_providers_container_ran_is_left_out_of_a_history() -> None:
    ran = {
        "type": "shell_call",
        "call_id": "k",
        "action": {"commands": ["ls"]},
        "environment": {"type": "container_reference"},
    }
    result = {"type": "shell_call_output", "call_id": "k", "output": []}
    request = read("responses", ran, result).request
    assert [turn.role for turn in request.turns] == ["user"] and request.left_out == 2


def test_anthropics_typed_tools_are_called_under_the_names_that_their_clients_know() -> None:
    tools = [{"type": kind, "name": name} for kind, (name, _, _) in ANTHROPIC_TOOLS.items() if kind > "m"]
    assert set(names(read("anthropic", tools=tools))) == {
        "memory",
        "str_replace_editor",
        "str_replace_based_edit_tool",
    }
    with pytest.raises(
        Problem, match=r"tools\[0\]: a tool of the type bash_20250124 must have the name 'bash'"
    ):
        read("anthropic", tools=[{"type": "bash_20250124", "name": "sh"}])
    incoming = read(
        "anthropic",
        tools=[{"type": "bash_20250124", "name": "bash"}],
        tool_choice={"type": "tool", "name": "bash"},
    )
    assert incoming.request.rule == CallRule(names=("bash",), required=True)
    body = ANTHROPIC.dialect.reply(
        incoming,
        reply_of(Turn(role="assistant", text="", reasoning=None, calls=(call("bash", command="ls"),))),
    )
    assert body["content"] == [
        {"type": "tool_use", "id": "call_s0_0", "name": "bash", "input": {"command": "ls"}}
    ]


def of_name(wire: Wire, name: str) -> dict[str, Any]:
    choices: dict[str, dict[str, Any]] = {
        "chat": {"type": "function", "function": {"name": name}},
        "responses": {"type": "function", "name": name},
        "anthropic": {"name": name, "input_schema": {"type": "object"}},
    }
    return choices[wire.dialect.name]


@pytest.mark.parametrize("wire", WIRES)
def test_a_choice_that_forces_a_call_is_refused_where_the_policy_is_shown_no_tool(wire: str) -> None:
    force: Any = {"type": "any"} if wire == "anthropic" else "required"
    for tools in (None, [], [{"type": "web_search"}]):
        with pytest.raises(Problem, match=r"^tool_choice wants a call.*no tool") as problem:
            read(wire, tools=tools, tool_choice=force)
        assert (problem.value.status, problem.value.param) == (400, "tool_choice")
        for lax in ("none", "auto", None):
            assert not read(wire, tools=tools, tool_choice=lax).request.rule.required
    assert read(wire, tools=[of_name(WIRES[wire], "f")], tool_choice=force).request.rule.required


@pytest.mark.parametrize("wire", WIRES)
def test_a_choice_of_a_providers_tool_is_refused_by_its_name(wire: str) -> None:
    tools = [of_name(WIRES[wire], "web_search"), {"type": "web_search"}]
    for choice in (
        {"type": "web_search"},
        {"type": "code_interpreter"},
        {"type": "mcp", "server_label": "x"},
    ):
        with pytest.raises(Problem, match=f"tool_choice names '{choice['type']}', a tool of a provider's"):
            read(wire, tools=tools, tool_choice=choice)


def test_a_first_form_of_tools_cannot_force_a_call_of_none() -> None:
    with pytest.raises(Problem, match=r"^function_call names 'f', which no tool"):
        read("chat", function_call={"name": "f"})


def test_a_typed_tool_is_chosen_by_its_type() -> None:
    tools = [SHELL, {"type": "function", "name": "look"}]
    assert read("responses", tools=tools, tool_choice={"type": "shell"}).request.rule == CallRule(
        names=("shell",), required=True
    )
    some = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "shell"}, {"type": "web_search"}]}
    assert read("responses", tools=tools, tool_choice=some).request.rule == CallRule(names=("shell",))
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}
    for choice, words in (({"type": "apply_patch"}, "must be auto"), (only, "wants a call")):
        with pytest.raises(Problem, match=f"tool_choice {words}"):
            read("responses", tools=tools, tool_choice=choice)


def test_tools_that_come_with_a_history_are_never_refused() -> None:
    odd = [
        {"type": "shell"},  # a function of the request has that name
        {"type": "function"},
        {"type": "namespace", "tools": []},
        {"type": "function", "name": "odd", "parameters": []},
        "words",
    ]
    function = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
    added = [{"type": "additional_tools", "tools": odd}, {"type": "additional_tools", "tools": 7}]
    request = read("responses", *added, tools=[function]).request
    assert [tool["function"]["name"] for tool in request.tools] == ["shell"] and request.left_out == 6


def test_what_an_action_holds_beyond_its_arguments_is_left_out_of_a_history_however_deep() -> None:
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    action = {"commands": ["ls"], "more": deep}
    _, turn = read("responses", {"type": "shell_call", "call_id": "c", "action": action}).request.turns
    assert turn.calls == (call("shell", commands=["ls"]),)


@pytest.mark.parametrize(
    ("made", "result", "text"),
    [
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {
                "type": "shell_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "hello"}],
            },
            "hello",
        ),
        (
            {"type": "apply_patch_call", "call_id": "c", "operation": PATCH},
            {
                "type": "apply_patch_call_output",
                "call_id": "c",
                "status": "failed",
                "output": [{"type": "input_text", "text": "no such line"}],
            },
            "Error: no such line",
        ),
        (
            {"type": "local_shell_call", "id": "lsh_s0_0", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "lsh_s0_0", "output": "a"},
            "a",
        ),
    ],
)
def test_no_result_of_a_typed_tool_is_lost(made: Any, result: Any, text: str) -> None:
    request = read("responses", made, result).request
    assert request.turns[-1].text == text and request.left_out == 0
