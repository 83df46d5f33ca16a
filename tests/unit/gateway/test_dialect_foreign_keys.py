"""A key of another wire, in a tool, a choice or a message: refused by its name with the key to use, and never dropped."""

from typing import Any

import pytest

from orchestrator.gateway.http.dialects.base import Known
from orchestrator.gateway.problems import Problem
from tests.unit.gateway.dialect_rig import ANTHROPIC, CHAT, COMMAND, RESPONSES

WIRES = {wire.dialect.name: wire for wire in (CHAT, RESPONSES, ANTHROPIC)}
USER: dict[str, Any] = {"role": "user", "content": "go"}
INNER = {"name": "f", "description": "d", "parameters": COMMAND}


def read(wire: str, *history: Any, **more: Any) -> Any:
    conversation = {"input" if wire == "responses" else "messages": [USER, *history]}
    return WIRES[wire].dialect.read({**conversation, **more}, {}).request


def function(**more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **more}}


FLAT = {"type": "function", "name": "f", "input_schema": COMMAND}
TOOLS: list[tuple[str, dict[str, Any], str]] = [
    ("anthropic", {"name": "f", "parameters": COMMAND}, r"^tools\[0\]\.parameters is not read: .* has name, description, input_schema$"),
    ("anthropic", {"name": "f", "input_schema": COMMAND, "parameters": COMMAND}, r"^tools\[0\]\.parameters is not read"),
    ("anthropic", {"name": "f", "inputSchema": COMMAND}, r"^tools\[0\]\.inputSchema is not read: .*input_schema$"),
    ("anthropic", {"name": "f"}, r"^tools\[0\] has no input_schema: send the JSON schema"),
    ("anthropic", {"name": "f", "input_schema": None}, r"^tools\[0\] has no input_schema"),
    ("anthropic", {"type": "custom", "name": "f"}, r"^tools\[0\] has no input_schema"),
    ("anthropic", {"name": "f", "function": INNER, "input_schema": COMMAND}, r"^tools\[0\]\.function is not read"),
    ("anthropic", {"type": "function", "function": INNER}, r"^tools\[0\] is of the type 'function'.*input_schema and no type"),
    ("anthropic", {"type": "custom", "name": "f", "format": {"type": "text"}, "input_schema": COMMAND}, r"\.format is not read"),
    ("anthropic", {"type": "bash_20250124", "name": "bash", "input_schema": COMMAND}, r"^tools\[0\]\.input_schema is not read"),
    ("chat", function(input_schema=COMMAND), r"^tools\[0\]\.function\.input_schema is not read: .* has name, description, parameters$"),
    ("chat", {**function(), "input_schema": COMMAND}, r"^tools\[0\]\.input_schema is not read: function has function$"),
    ("chat", {**function(), "parameters": COMMAND}, r"^tools\[0\]\.parameters is not read"),
    ("chat", {**function(), "name": "g"}, r"^tools\[0\]\.name is not read"),
    ("chat", {**function(), "description": "Outside."}, r"^tools\[0\]\.description is not read"),
    ("chat", {"type": "function", **INNER}, r"^tools\[0\] has no function object: .*belong in tools\[0\]\.function$"),
    ("chat", {"name": "f", "input_schema": COMMAND}, r"^tools\[0\] has no function object"),
    ("chat", {"type": "custom", "name": "f", "format": {"type": "text"}}, r"^tools\[0\] has no custom object: .*belong in tools\[0\]\.custom$"),
    ("chat", {"type": "custom", "custom": {"name": "f", "parameters": COMMAND}}, r"^tools\[0\]\.custom\.parameters is not read: .*format$"),
    ("responses", {"type": "function", "name": "f", "input_schema": COMMAND}, r"^tools\[0\]\.input_schema is not read: .*parameters$"),
    ("responses", {"type": "function", "function": INNER}, r"^tools\[0\]\.function is not read: .* has name, description, parameters$"),
    ("responses", {"type": "function", "name": "f", "function": INNER}, r"^tools\[0\]\.function is not read"),
    ("responses", {"type": "custom", "name": "f", "parameters": COMMAND}, r"^tools\[0\]\.parameters is not read: .*format$"),
    ("responses", {"type": "custom", "custom": {"name": "f"}}, r"^tools\[0\]\.custom is not read"),
    ("responses", {"type": "function", "name": "f", "format": {"type": "text"}}, r"^tools\[0\]\.format is not read"),
    ("responses", {"type": "shell", "parameters": COMMAND}, r"^tools\[0\]\.parameters is not read"),
    ("responses", {"type": "namespace", "name": "a", "tools": [FLAT]}, r"^tools\[0\]\.tools\[0\]\.input_schema"),
    ("responses", {"type": "namespace", "name": "a", "parameters": COMMAND, "tools": [FLAT]}, r"parameters is not read: a namespace has"),
    ("responses", {"type": "namespace", "name": "a", "functions": [INNER]}, r"^tools\[0\]\.functions is not read: .*tools$"),
    ("responses", {"type": "function", "name": "f", "namespace": "a"}, r"^tools\[0\]\.namespace is not read"),
    ("responses", {"type": "function", "name": "f", "allowed_callers": "programmatic"}, r"^tools\[0\]\.allowed_callers must be a list"),
    *((wire, {**form, "description": 5}, "the description of tool 'f' must be a string") for wire, form in (
        ("anthropic", {"name": "f", "input_schema": COMMAND}), ("responses", {"type": "function", "name": "f"}))),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "tool", "words"), TOOLS)
def test_a_tool_in_the_form_of_another_wire_is_refused_with_the_own_form(
    wire: str, tool: dict[str, Any], words: str
) -> None:
    with pytest.raises(Problem, match=words) as problem:
        read(wire, tools=[tool])
    assert (problem.value.status, problem.value.param) == (400, "tools") and "\n" not in problem.value.message


@pytest.mark.parametrize(
    ("wire", "tool"),
    [
        ("chat", {**function(strict=True, parameters=None), "name": "f", "cache_control": {"type": "ephemeral"}, "parameters": None}),
        ("chat", {"function": INNER}),
        ("responses", {"type": "function", "name": "f", "parameters": None, "strict": None, "defer_loading": True, "input_schema": None}),
        ("anthropic", {"name": "f", "input_schema": COMMAND, "strict": True, "cache_control": {"type": "ephemeral"}, "type": "custom"}),
        ("anthropic", {"name": "f", "input_schema": COMMAND, "eager_input_streaming": True, "input_examples": [{}], "type": None}),
    ],
)  # fmt: skip
def test_what_real_clients_send_with_a_tool_is_taken(wire: str, tool: dict[str, Any]) -> None:
    assert [one["function"]["name"] for one in read(wire, tools=[tool]).tools] == ["f"]


def test_a_legacy_function_has_the_same_keys_as_a_function() -> None:
    assert read("chat", functions=[INNER]).tools
    with pytest.raises(Problem, match=r"input_schema is not read"):
        read("chat", functions=[{"name": "f", "input_schema": COMMAND}])


def test_two_choices_in_one_request_are_refused() -> None:
    for tools in ({"tools": [function()]}, {"functions": [INNER]}):
        with pytest.raises(Problem, match="send tool_choice or function_call, not both"):
            read("chat", tool_choice="none", function_call="auto", **tools)


@pytest.mark.parametrize(
    ("wire", "choice", "words"),
    [
        ("anthropic", {"type": "auto", "name": "f"}, "^tool_choice of the type 'auto' has no 'name'"),
        ("anthropic", {"name": "f"}, "^tool_choice must be auto, none, required or name a tool of this request$"),
        ("anthropic", {"type": "any", "function": {"name": "f"}}, "^tool_choice of the type 'any' has no 'function'"),
        ("chat", {"type": "function", "function": {"name": "f"}, "mode": "auto"}, "^tool_choice of the type 'function' has no 'mode'"),
        ("chat", {"type": "auto", "disable_parallel_tool_use": "yes"}, r"^tool_choice\.disable_parallel_tool_use must be true or false$"),
        ("chat", {"type": "allowed_tools", "mode": "required", "allowed_tools": {"mode": "auto", "tools": []}}, "has no 'mode': send allowed_tools"),
    ],
)  # fmt: skip
def test_a_key_that_a_choice_of_its_type_does_not_have_is_refused(
    wire: str, choice: dict[str, Any], words: str
) -> None:
    tools = {"chat": [function()], "anthropic": [{"name": "f", "input_schema": COMMAND}]}[wire]
    with pytest.raises(Problem, match=words):
        read(wire, tools=tools, tool_choice=choice)


CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
ANSWER: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def used(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", **more}]}


def result(**more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", **more}]}


def made(**call: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": CALL["function"], **call}]}


def custom(inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": inner, **more}]}


USE = used(input={"a": 1})
MADE: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}


@pytest.mark.parametrize(
    ("wire", "history", "words"),
    [
        ("anthropic", [ANSWER], r"^messages\[1\]\.tool_calls is not read: use tool_use blocks on this wire$"),
        ("anthropic", [{"role": "user", "tool_call_id": "c", "content": "r"}], r"tool_call_id is not read: use a tool_result block"),
        ("anthropic", [{"role": "assistant", "content": "x", "reasoning_content": "y"}], "reasoning_content is not read: use a thinking block"),
        ("anthropic", [USE, result(tool_call_id="c", content="r")], "tool_call_id is not read: use tool_use_id"),
        ("anthropic", [USE, result(tool_use_id="c", output="r")], "output is not read: use content"),
        ("anthropic", [used(arguments="{}")], "arguments is not read: use input"),
        ("responses", [{**ANSWER, "content": "x"}], r"^input\[1\]\.tool_calls is not read: use function_call items on this wire$"),
        ("responses", [{"role": "user", "tool_call_id": "c", "content": "r"}], "use a function_call_output item"),
        ("responses", [MADE, {"role": "tool", "tool_call_id": "c", "content": "r"}], "use a function_call_output item"),
        ("responses", [MADE, {"type": "function_call_output", "tool_call_id": "c", "output": "r"}], "tool_call_id is not read: use call_id"),
        ("responses", [MADE, {"type": "function_call_output", "call_id": "c", "content": "r"}], "content is not read: use output"),
        ("responses", [{**MADE, "arguments": None, "input": {"a": 1}}], "input is not read: use arguments"),
        ("responses", [{"type": "custom_tool_call", "call_id": "c", "name": "f", "arguments": "x"}], "arguments is not read: use input"),
        ("responses", [{**MADE, "function": {"arguments": "{}"}}], r"^input\[1\]\.function is not read: use name and arguments"),
        ("responses", [{"role": "user", "text": "hi"}], r"^input\[1\]\.text is not read: use content"),
        ("responses", [{"type": "reasoning", "text": "hm"}], r"^input\[1\]\.text is not read: use content"),
        ("anthropic", [{"role": "assistant", "content": [{"type": "thinking", "text": "hm"}]}], "text is not read: use thinking"),
        ("chat", [{**USER, "tool_calls": [CALL]}], r"^messages\[1\]\.tool_calls is not read: only a message of the assistant"),
        ("chat", [{**ANSWER, "function_call": {"name": "g", "arguments": "{}"}}], "tool_calls and another function_call"),
        ("chat", [{"role": "user", "content": [], "text": "hi"}], r"^messages\[1\]\.text is not read: use content"),
        ("chat", [ANSWER, {"role": "tool", "tool_use_id": "c", "content": "r"}], r"^messages\[2\]\.tool_use_id is not read: use tool_call_id"),
        ("chat", [ANSWER, {"role": "tool", "call_id": "c", "content": "r"}], "call_id is not read: use tool_call_id"),
        ("chat", [{**ANSWER, "tool_calls": [{"id": "c", "name": "f", "input": {"a": 1}}]}], "input is not read: use arguments"),
        ("chat", [made(call_id="c")], r"^a tool call of the history\.call_id is not read: use id on this wire$"),
        ("chat", [made(tool_call_id="c")], r"tool_call_id is not read: use id on this wire$"),
        ("chat", [made(call_id="c", id="")], r"call_id is not read: use id on this wire$"),
        ("responses", [{**MADE, "call_id": None, "tool_call_id": "c"}], r"^input\[1\]\.tool_call_id is not read: use call_id on this wire$"),
        ("responses", [{**MADE, "call_id": None, "id": "fc_1", "tool_use_id": "c"}], r"tool_use_id is not read: use call_id"),
        ("anthropic", [used(id=None, tool_use_id="c", input={})], r"^messages\[1\]\.tool_use_id is not read: use id on this wire$"),
        ("chat", [custom({"name": "f", "arguments": "x"})], r"^a tool call of the history\.arguments is not read: use input on this wire$"),
        ("chat", [custom({"name": "f"}, input="x")], r"history\.input is not read: use custom\.input on this wire$"),
        ("chat", [made(id="c", function={"name": "f"}, arguments='{"a": 1}')], r"arguments is not read: use function\.arguments on this wire$"),
        ("chat", [{"role": "user", "text": "hi"}], r"^messages\[1\]\.text is not read: use content"),
        ("chat", [{"role": "user", "parts": [{"text": "hi"}]}], r"^messages\[1\]\.parts is not read: use content"),
    ],
)  # fmt: skip
def test_a_part_of_the_conversation_under_another_wires_key_is_refused_with_the_own_key(
    wire: str, history: list[Any], words: str
) -> None:
    conversation = {"input" if wire == "responses" else "messages": [USER, *history]}
    for past in (False, True):
        with pytest.raises(Problem, match=words) as problem:
            WIRES[wire].dialect.read(conversation, {}, Known(past=past))
        assert problem.value.param == ("input" if wire == "responses" else "messages")


@pytest.mark.parametrize(
    ("wire", "history"),
    [
        ("chat", [ANSWER, {"role": "tool", "tool_call_id": "c", "call_id": "c", "content": "r"}]),
        ("chat", [ANSWER, {"role": "tool", "content": "r", "name": "f"}]),
        ("chat", [{**ANSWER, "function_call": CALL["function"]}]),
        ("responses", [{"type": "reasoning", "summary": [], "encrypted_content": "x", "text": None}]),
        (
            "chat",
            [
                {
                    **ANSWER,
                    "function_call": None,
                    "reasoning_content": None,
                    "refusal": None,
                    "annotations": [],
                }
            ],
        ),
        ("anthropic", [{"role": "assistant", "content": "x", "reasoning_content": None, "tool_calls": []}]),
        *(
            ("chat", [{"role": "assistant", "tool_calls": [call]}])
            for call in (
                {"id": "c", "function": {"name": "f", "arguments": ""}, "input": {}},
                {"id": "c", "function": {"name": "f", "arguments": ""}, "args": {}},
                {"id": "c", "function": {"name": "f"}, "parameters": {}},
                {"id": "c", "function": {"name": "f", "arguments": None}, "arguments": ""},
                {"call_id": "", "function": {"name": "f", "arguments": "{}"}},
            )
        ),
        ("responses", [{**MADE, "id": "fc_1", "status": "completed", "input": None, "namespace": None}]),
    ],
)
def test_keys_that_hold_nothing_more_are_taken(wire: str, history: list[Any]) -> None:
    assert read(wire, *history).turns


def test_an_item_id_names_a_call_without_a_call_id() -> None:
    calls = [
        {"type": "function_call", "id": "x", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "id": "y", "name": "change", "input": "z"},
        {"type": "function_call", "id": "fc_s3_1", "name": "move", "arguments": "{}"},
    ]
    results = [
        {"type": "function_call_output", "call_id": "call_s3_1", "output": "moved"},
        {"type": "custom_tool_call_output", "call_id": "y", "output": "changed"},
        {"type": "function_call_output", "call_id": "x", "output": "looked"},
    ]
    turns = [turn for turn in read("responses", *calls, *results).turns if turn.role == "tool"]
    assert [(turn.text, turn.answers.name) for turn in turns] == [
        ("looked", "look"),
        ("changed", "change"),
        ("moved", "move"),
    ]
